#ifndef EGERIA_GLOO_DECLARATIONS_RENDEZVOUS_STORE_H_
#define EGERIA_GLOO_DECLARATIONS_RENDEZVOUS_STORE_H_

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

// The methods that torch's adapter from its own store overrides. No object of it is made in this project.
class IStore {
 public:
  virtual ~IStore() = default;

  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

class Store : public IStore {};

}  // namespace gloo::rendezvous

#endif  // EGERIA_GLOO_DECLARATIONS_RENDEZVOUS_STORE_H_
