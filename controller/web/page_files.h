#ifndef EGERIA_CONTROLLER_WEB_PAGE_FILES_H_
#define EGERIA_CONTROLLER_WEB_PAGE_FILES_H_

#include <string_view>
#include <vector>

namespace egeria::controller {

// A file of the page, which the build has put into the program.
struct PageFile {
  const char* path;  // where it is served
  const char* type;
  std::string_view content;
};

// All of them; they last as long as the program does.
const std::vector<PageFile>& PageFiles();

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_PAGE_FILES_H_
