// A lane's place: for each loop it is in, where the loop stands and in which pass the lane is, then the call at which
// it waits. Where a call stands is the chain of call sites that led there. Everything of a shader is inlined, so debug
// information gives the chain for an address; it is looked up only when lanes have parted.
#include "places.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

namespace metalsim {

// One call site: in order of execution, then as written.
using Site = std::tuple<unsigned, unsigned, unsigned, unsigned>;
using Chain = std::vector<Site>;  // outermost first

// By address, for as long as the process lives: shaders are never unloaded.
static std::mutex chains_lock;
static std::map<uintptr_t, Chain> chains;

static bool ends_with(const std::string& text, const char* end) {
  size_t n = strlen(end);
  return text.size() >= n && !text.compare(text.size() - n, n, end);
}

static Site site_of(const LateCalls* late, const std::string& file, unsigned line, unsigned column) {
  for (unsigned i = 0; late && i < late->count; i++) {
    const LateCall& call = late->calls[i];
    if (call.line == line && call.column == column && ends_with(file, call.file))
      return {call.late_line, call.late_column, line, column};
  }
  return {line, column, line, column};
}

// The symbolizer's answer for one address: a line "file:line:column" a frame, innermost first, then an empty line.
static Chain read_chain(FILE* answer, const LateCalls* late) {
  Chain chain;
  char text[4096];
  while (fgets(text, sizeof text, answer) && text[0] != '\n') {
    std::string frame = text;
    size_t column = frame.rfind(':'), line = column == std::string::npos ? column : frame.rfind(':', column - 1);
    if (line == std::string::npos) return {};
    unsigned l = atoi(&frame[line + 1]), c = atoi(&frame[column + 1]);
    if (l == 0 || c == 0) return {};  // columns above 65535 are not kept
    chain.insert(chain.begin(), site_of(late, frame.substr(0, line), l, c));
  }
  return chain;
}

static void look_up(const std::vector<uintptr_t>& addresses) {
  Dl_info image;
  if (addresses.empty() || !dladdr((void*)addresses[0], &image)) return;
  void* handle = dlopen(image.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  auto late_calls = handle ? (const LateCalls* (*)())dlsym(handle, "metalsim_late_calls") : nullptr;
  std::string query = " --inlining --functions=none --obj='" + std::string(image.dli_fname) + "'";
  for (uintptr_t address : addresses) {
    char number[32];
    // A return address is one past the call.
    snprintf(number, sizeof number, " 0x%lx", (unsigned long)(address - (uintptr_t)image.dli_fbase - 1));
    query += number;
  }
  std::string command = "for s in llvm-symbolizer-19 llvm-symbolizer; do command -v $s >/dev/null && exec $s" + query +
                        "; done 2>/dev/null";
  FILE* answer = popen(command.c_str(), "r");
  if (!answer) return;
  for (uintptr_t address : addresses) chains[address] = read_chain(answer, late_calls ? late_calls() : nullptr);
  pclose(answer);
  if (handle) dlclose(handle);
}

static void add_unknown(std::vector<uintptr_t>& unknown, uintptr_t address) {
  if (!chains.count(address)) unknown.push_back(address);
}

// One start of the symbolizer answers for all threads that wait.
static void look_up_all(uintptr_t address) {
  std::vector<uintptr_t> unknown;
  add_unknown(unknown, address);
  for (unsigned i = 0; i < worker->count; i++) {
    const Fiber& f = worker->fibers[i];
    if (f.state != State::at_simd && f.state != State::at_barrier) continue;
    add_unknown(unknown, f.site);
    for (const Loop* l = f.thread.loop; l; l = l->outer) add_unknown(unknown, (uintptr_t)l->site);
  }
  look_up(unknown);
}

static const Chain* known_chain(uintptr_t address) {
  std::lock_guard<std::mutex> hold(chains_lock);
  if (!chains.count(address)) look_up_all(address);
  auto known = chains.find(address);
  return known == chains.end() || known->second.empty() ? nullptr : &known->second;
}

static const Chain& chain_of(uintptr_t address) {
  if (const Chain* chain = known_chain(address)) return *chain;
  fail("divergent simdgroup operation",
       "lanes of one simdgroup wait at places that cannot be put in order: that needs llvm-symbolizer, and lines of "
       "less than 65536 columns",
       (const void*)address);
}

struct Step {
  uintptr_t site;
  unsigned pass;
};
static std::vector<Step> steps_to(const Fiber& f) {
  std::vector<Step> steps = {{f.site, 0}};
  for (const Loop* l = f.thread.loop; l; l = l->outer) steps.insert(steps.begin(), {(uintptr_t)l->site, l->pass});
  return steps;
}

int compare_places(const Fiber& a, const Fiber& b) {
  if (a.site == b.site && a.thread.passes == b.thread.passes) return 0;
  std::vector<Step> x = steps_to(a), y = steps_to(b);
  for (size_t i = 0; i < x.size() && i < y.size(); i++) {
    if (x[i].site != y[i].site) {
      const Chain &left = chain_of(x[i].site), &right = chain_of(y[i].site);
      if (left != right) return left < right ? -1 : 1;
    }
    if (x[i].pass != y[i].pass) return x[i].pass < y[i].pass ? -1 : 1;
  }
  return x.size() < y.size() ? -1 : x.size() > y.size();
}

}  // namespace metalsim

using namespace metalsim;

extern "C" void metalsim_enter_loop(Loop* loop) { loop->site = __builtin_return_address(0); }
