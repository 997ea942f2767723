#include "execution.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "../../engine/internal.h"

extern char** environ;

namespace metalsim {

// ---- Running other programs.

struct Finished {
  int status;
  std::string output, errors;
};

static std::string read_all(int file) {
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = read(file, piece, sizeof piece)) > 0;) text.append(piece, (size_t)n);
  close(file);
  return text;
}
static Finished execute(const std::vector<std::string>& command, const std::string& input) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) throw std::runtime_error("no pipes left");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<char*> arguments;
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  pid_t child;
  int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  if (failed) {
    close(in[1]);
    close(out[0]);
    close(err[0]);
    throw std::runtime_error("cannot run " + command[0] + ": " + strerror(failed));
  }
  // The child may write before it has read all.
  std::thread writer([&] {
    sigset_t pipes;  // a child that ends early must not end us
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipes, nullptr);
    for (size_t at = 0; at < input.size();) {
      ssize_t n = write(in[1], input.data() + at, input.size() - at);
      if (n <= 0) break;
      at += (size_t)n;
    }
    close(in[1]);
  });
  Finished result;
  std::thread errors([&] { result.errors = read_all(err[0]); });
  result.output = read_all(out[0]);
  writer.join();
  errors.join();
  waitpid(child, &result.status, 0);
  return result;
}

// ---- Images.

// Laid out as the shader's side has them (shim/metalsim/launch.h).
struct LeastBytes {
  int buffer;
  unsigned bytes;
};
struct KernelRecord {
  const char* name;
  void (*run)();
  KernelRecord* next;
  const LeastBytes* least_bytes;
  unsigned parameters;
};
struct Image {
  std::string path, shim;
  std::map<std::string, KernelInfo> infos;  // by kernel
  std::map<std::string, std::string> constant_types;
  std::map<std::string, const KernelRecord*> kernels;
  const FunctionConstant* first_constant;
  std::vector<const FunctionConstant*> constants;  // those with a name
  char *begin, *end;
};

static void load(const std::string& engine, Image& image) {
  if (!dlopen(engine.c_str(), RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
  void* handle = dlopen(image.path.c_str(), RTLD_NOW);
  if (!handle) throw std::runtime_error(dlerror());
  auto symbol = [&](const char* name) {
    void* found = dlsym(handle, name);
    if (!found) throw std::runtime_error(image.path + " has no " + name);
    return found;
  };
  for (auto* r = ((KernelRecord * (*)()) symbol("metalsim_kernels"))(); r; r = r->next) image.kernels[r->name] = r;
  image.first_constant = ((FunctionConstant * (*)()) symbol("metalsim_constants"))();
  for (const FunctionConstant* r = image.first_constant; r; r = r->next)
    if (r->name) image.constants.push_back(r);
  image.begin = ((char* (*)())symbol("metalsim_image_begin"))();
  image.end = ((char* (*)())symbol("metalsim_image_end"))();
}

// Where in the shader a call is: the innermost frame that is not the shim's own.
static std::string location(const Image& image, uint64_t program_counter) {
  auto begin = (uint64_t)image.begin;
  if (program_counter < begin || program_counter >= (uint64_t)image.end) return "?";
  std::ostringstream address;
  address << "0x" << std::hex << program_counter - begin - 1;  // a return address is one past the call
  Finished done;
  for (const char* tool : {"llvm-symbolizer-19", "llvm-symbolizer"}) {
    try {
      done = execute({tool, "--obj=" + image.path, "--inlining", "--functions=none", address.str()}, "");
      break;
    } catch (const std::runtime_error&) {
      continue;
    }
  }
  std::istringstream lines(done.output);
  for (std::string line; std::getline(lines, line);) {
    size_t column = line.rfind(':');
    if (column == std::string::npos || !column) continue;
    std::string place = line.substr(0, column);  // file:line
    if (place.rfind(image.shim, 0) == 0 || place.find("swizzle.inc") != std::string::npos) continue;
    size_t source = place.find("<source>");
    return source == std::string::npos ? place : place.substr(source);
  }
  return "?";
}

// ---- Programs.

static const char* python() {
  const char* chosen = getenv("METALSIM_PYTHON");
  return chosen && *chosen ? chosen : "python3";
}

// Reads what compile_command.py prints.
static std::unique_ptr<Image> image_of(const std::string& output) {
  auto image = std::make_unique<Image>();
  KernelInfo* kernel = nullptr;
  std::string engine;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, rest;
    std::getline(words, what, '\t');
    std::getline(words, rest);
    size_t tab = rest.find('\t');
    if (what == "engine") engine = rest;
    if (what == "image") image->path = rest;
    if (what == "shim") image->shim = rest;
    if (what == "constant") image->constant_types[rest.substr(0, tab)] = rest.substr(tab + 1);
    if (what == "kernel") kernel = &image->infos[rest];
    if (what == "threads") kernel->max_threads = std::stoull(rest);
    if (what != "parameter") continue;
    std::istringstream fields(rest);
    std::string kind;
    int index, constant, read_only, conditional;
    fields >> kind >> index >> constant >> read_only >> conditional;
    auto known = kind == "buffer"        ? KernelParameter::buffer
                 : kind == "threadgroup" ? KernelParameter::threadgroup
                                         : KernelParameter::other;
    kernel->parameters.push_back({known, index, (bool)constant, (bool)read_only, (bool)conditional});
  }
  load(engine, *image);
  return image;
}

Program::Program(std::string source, std::vector<std::string> defines)
    : source_(std::move(source)), defines_(std::move(defines)) {
  Image& built = image(settings().check);
  kernels_ = built.infos;
  for (const auto& [name, record] : built.kernels)
    for (const LeastBytes* each = record->least_bytes; each != record->least_bytes + record->parameters; each++)
      if (each->buffer >= 0) kernels_[name].least_bytes[each->buffer] = each->bytes;
  for (const FunctionConstant* r : built.constants)
    constants_.push_back({r->index, r->name, built.constant_types[r->name], r->size});
}
Program::~Program() = default;

Image& Program::image(bool checked) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Image>& slot = images_[checked];
  if (slot) return *slot;
  std::vector<std::string> command = {python(), METALSIM_COMPILE_COMMAND, checked ? "checked" : "fast"};
  command.insert(command.end(), defines_.begin(), defines_.end());
  Finished done = execute(command, source_);
  if (done.status) throw std::runtime_error(done.errors.empty() ? "the shader compiler failed" : done.errors);
  slot = image_of(done.output);
  return *slot;
}

// ---- Records of what ran.

namespace {
struct Record {
  std::string kernel;
  uint32_t grid[3], threadgroup[3];
  Counters counters;
};
struct Recording {
  std::mutex mutex;
  int recorders = 0;
  std::vector<std::unique_ptr<Record>> records;
};
}  // namespace
static Recording& recording() {
  static auto* all = new Recording;
  return *all;
}
static void record(const Dispatch& dispatch, const Request& request, const Counters& counters) {
  Recording& all = recording();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.recorders) return;
  auto entry = std::make_unique<Record>();
  entry->kernel = dispatch.kernel;
  memcpy(entry->grid, request.grid, sizeof entry->grid);
  memcpy(entry->threadgroup, request.group, sizeof entry->threadgroup);
  entry->counters = counters;
  all.records.push_back(std::move(entry));
}

// ---- Dispatches.

static std::string describe(const Fault& fault, const Dispatch& dispatch, const Image& image) {
  auto three = [](const uint32_t* v) {
    return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) + ")";
  };
  std::string place =
      *fault.file ? std::string(fault.file) + ":" + std::to_string(fault.line) : location(image, fault.program_counter);
  return std::string(fault.kind) + ": " + fault.message + "\n  kernel " + dispatch.kernel + ", threadgroup " +
         three(fault.group) + ", thread " + three(fault.thread) + ", " + place;
}

using ConstantValues = std::vector<ConstantValue>;
static ConstantValues values_of(const std::vector<GivenConstant>& given) {
  ConstantValues values;
  for (const GivenConstant& each : given)
    values.push_back({each.index, each.index < 0 ? each.name.c_str() : nullptr, each.bytes.data(), each.bytes.size()});
  return values;
}
static Request request_for(const Dispatch& dispatch, const metalsim_settings& chosen, const Image& image,
                           const ConstantValues& values) {
  Request request{};
  request.kernel = image.kernels.at(dispatch.kernel)->run;
  std::map<int, KernelParameter> parameters;
  for (const KernelParameter& p : dispatch.program->kernels().at(dispatch.kernel).parameters)
    if (p.kind == KernelParameter::buffer) parameters.emplace(p.index, p);
  for (const auto& [index, bound] : dispatch.buffers) {
    auto parameter = parameters.find(index);
    bool known = parameter != parameters.end();
    request.buffers[index] = {bound.address, bound.size, known && parameter->second.constant,
                              !known || parameter->second.read_only, bound.offset};
  }
  for (const auto& [index, bytes] : dispatch.threadgroup_bytes) request.threadgroup_bytes[index] = bytes;
  for (int i = 0; i < 3; i++) {
    request.grid[i] = (uint32_t)dispatch.grid[i];
    request.group[i] = (uint32_t)dispatch.threadgroup[i];
  }
  request.checked = chosen.check;
  request.order = chosen.order;
  request.workers = chosen.threads;
  request.seed = chosen.seed;
  request.image_begin = image.begin;
  request.image_end = image.end;
  request.constants = image.first_constant;
  request.values = values.data();
  request.value_count = values.size();
  return request;
}

using DispatchFunction = int (*)(const Request*, Counters*, Fault*);

std::optional<std::string> run(const Dispatch& dispatch) try {
  metalsim_settings chosen = settings();
  Image& image = dispatch.program->image(chosen.check);
  auto engine = (DispatchFunction)dlsym(RTLD_DEFAULT, "metalsim_dispatch");
  ConstantValues values = values_of(dispatch.constants);
  Request request = request_for(dispatch, chosen, image, values);
  Counters counters{};
  Fault fault{};
  if (engine(&request, &counters, &fault)) return describe(fault, dispatch, image);
  record(dispatch, request, counters);
  return std::nullopt;
} catch (const std::exception& error) {
  return error.what();
}

// ---- Settings.

[[noreturn]] static void refuse(const char* name, const char* value, const char* wanted) {
  fprintf(stderr, "metalsim: %s must be %s, not '%s'\n", name, wanted, value);
  exit(2);
}
static uint32_t choice(const char* name, const std::vector<const char*>& choices, uint32_t unset) {
  const char* value = getenv(name);
  if (!value) return unset;
  std::string wanted;
  for (uint32_t i = 0; i < choices.size(); i++) {
    if (!strcmp(value, choices[i])) return i;
    wanted += (i ? ", " : "") + std::string(choices[i]);
  }
  refuse(name, value, ("one of " + wanted).c_str());
}
static uint64_t whole_number(const char* name, uint64_t least, uint64_t unset) {
  const char* value = getenv(name);
  if (!value) return unset;
  char* end;
  uint64_t number = strtoull(value, &end, 10);
  if (!isdigit((unsigned char)*value) || *end || number < least)
    refuse(name, value, least ? "a whole number of at least 1" : "a whole number");
  return number;
}
static metalsim_settings settings_of_environment() {
  metalsim_settings chosen{};
  chosen.check = choice("METALSIM_CHECK", {"0", "1"}, 1);
  chosen.order = choice("METALSIM_ORDER", {"fifo", "lifo", "random"}, 2);
  chosen.seed = whole_number("METALSIM_SEED", 0, 0);
  chosen.threads = (uint32_t)whole_number("METALSIM_THREADS", 1, std::max(1u, std::thread::hardware_concurrency()));
  chosen.eager = choice("METALSIM_COMMIT", {"late", "eager"}, 0);
  chosen.abort_on_misuse = choice("METALSIM_ABORT", {"0", "1"}, 1);
  return chosen;
}
static std::mutex& settings_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
static metalsim_settings& current() {
  static metalsim_settings chosen = settings_of_environment();
  return chosen;
}
metalsim_settings settings() {
  std::lock_guard<std::mutex> lock(settings_mutex());
  return current();
}

}  // namespace metalsim

using namespace metalsim;

extern "C" {
void metalsim_get_settings(metalsim_settings* chosen) { *chosen = settings(); }
void metalsim_set_settings(const metalsim_settings* chosen) {
  std::lock_guard<std::mutex> lock(settings_mutex());
  current() = *chosen;
}
size_t metalsim_start_recording(void) {
  std::lock_guard<std::mutex> lock(recording().mutex);
  recording().recorders++;
  return recording().records.size();
}
size_t metalsim_recorded(void) {
  std::lock_guard<std::mutex> lock(recording().mutex);
  return recording().records.size();
}
void metalsim_record_at(size_t index, metalsim_dispatch_record* to) {
  std::lock_guard<std::mutex> lock(recording().mutex);
  const Record& from = *recording().records.at(index);
  snprintf(to->kernel, sizeof to->kernel, "%s", from.kernel.c_str());
  memcpy(to->grid, from.grid, sizeof to->grid);
  memcpy(to->threadgroup, from.threadgroup, sizeof to->threadgroup);
  to->counters = &from.counters;
}
void metalsim_stop_recording(void) {
  std::lock_guard<std::mutex> lock(recording().mutex);
  if (--recording().recorders == 0) recording().records.clear();
}
}
