// A blocking parallel loop on top of anything that can schedule a function: a thread pool, XLA's or another.
//
// Workers take indices from a shared counter, and the caller is a worker too. It waits until every index is
// done, never until every scheduled helper has started: the pool may be busy, or the caller may itself be
// running on the pool's only thread. A helper that starts late finds the counter exhausted and touches
// nothing but the state it shares ownership of.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace jaxgemm::cpu {

class ParallelLoop {
 public:
  ParallelLoop(int64_t count, const std::function<void(int64_t)>& body) : count_(count), body_(&body) {}

  void work() noexcept {
    // body_ is only dereferenced for an index that is not done, and the caller keeps the body alive until
    // all of them are.
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      try {
        (*body_)(i);
      } catch (const std::exception& e) {
        fail(e.what());
      } catch (...) {
        fail("unknown exception");
      }
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) done_.notify_all();
    }
  }

  void wait() const noexcept {
    for (int64_t seen; (seen = done_.load(std::memory_order_acquire)) < count_;) {
      done_.wait(seen, std::memory_order_acquire);
    }
  }

  // What the first exception said; empty when there was none. Only after wait(), and once.
  std::string take_error() noexcept { return std::move(error_); }

 private:
  void fail(const char* what) noexcept {
    if (failed_.exchange(true, std::memory_order_relaxed)) return;
    try {
      error_ = what;
      if (error_.empty()) error_ = "exception without a message";
    } catch (...) {
      error_ = "out of memory";  // short enough to need no allocation
    }
  }

  const int64_t count_;
  const std::function<void(int64_t)>* const body_;
  // On lines of their own: every worker writes next_, and done_ is what the caller sleeps on.
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::string error_;
};

// Runs body(0) ... body(count - 1), each once, in any order, and returns when all are done. `threads` is the
// pool's size; `schedule` takes a std::function<void()> and runs it some time, on any thread, perhaps never
// before this function returns. Nothing is thrown: the message of the first exception that left the body is
// returned, empty when there was none, and the other indices still run.
template <typename Schedule>
std::string parallel_for(int64_t count, int64_t threads, Schedule&& schedule,
                         const std::function<void(int64_t)>& body) noexcept {
  if (count <= 0) return {};
  std::shared_ptr<ParallelLoop> loop;
  const int64_t helpers = std::min(threads, count) - 1;  // the caller is the other worker
  try {
    if (helpers > 0) loop = std::make_shared<ParallelLoop>(count, body);
    for (int64_t i = 0; i < helpers; ++i) schedule(std::function<void()>([loop] { loop->work(); }));
  } catch (...) {
    // Out of memory for the state or for a helper: the workers that there are do all of the work.
  }
  if (!loop) {
    ParallelLoop alone(count, body);
    alone.work();
    return alone.take_error();
  }
  loop->work();
  loop->wait();
  return loop->take_error();
}

}  // namespace jaxgemm::cpu
