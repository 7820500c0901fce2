#ifndef EGERIA_TESTS_SUPPORT_HTTP_H_
#define EGERIA_TESTS_SUPPORT_HTTP_H_

#include <string>

namespace egeria::testing {

// The body of an HTTP GET of "http://127.0.0.1:port/path"; empty where nobody answers with 200.
std::string HttpGet(const std::string& url);

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_HTTP_H_
