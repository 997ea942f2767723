#pragma once
#define OFFSET 0.25
struct Pair {
  int a;
  float b;
};
