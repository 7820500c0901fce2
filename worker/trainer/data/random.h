#ifndef EGERIA_WORKER_TRAINER_DATA_RANDOM_H_
#define EGERIA_WORKER_TRAINER_DATA_RANDOM_H_

#include <cstdint>
#include <initializer_list>

namespace egeria::trainer {

// SplitMix64: a small generator whose stream is a function of its key alone, the same on every platform.
class Random {
 public:
  // The key's parts are mixed one after the other, so that (1, 2) and (2, 1) give unrelated streams.
  explicit Random(std::initializer_list<uint64_t> key) {
    for (uint64_t part : key) state_ = Mix(state_ ^ part) + kIncrement;
  }

  uint64_t Next() { return Mix(state_ += kIncrement); }

  // Uniform in 0..bound-1 (bias under bound / 2^64).
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

 private:
  static constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15;
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 0;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_DATA_RANDOM_H_
