#ifndef EGERIA_GLOO_DECLARATIONS_TRANSPORT_DEVICE_H_
#define EGERIA_GLOO_DECLARATIONS_TRANSPORT_DEVICE_H_

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport

#endif  // EGERIA_GLOO_DECLARATIONS_TRANSPORT_DEVICE_H_
