#include "controller/web/page_files.h"

#ifdef EGERIA_HAS_PAGE
#include "page_content.h"  // deploy/cmake/embed.cmake writes it
#endif

namespace egeria::controller {

const std::vector<PageFile>& PageFiles() {
  static const std::vector<PageFile> files = {
#ifdef EGERIA_HAS_PAGE
      {"/", "text/html; charset=utf-8", embedded::index_html},
      {"/icon.svg", "image/svg+xml", embedded::icon_svg},
      {"/page.js", "text/javascript; charset=utf-8", embedded::page_js},
      {"/page.css", "text/css; charset=utf-8", embedded::page_css},
      {"/uplot.js", "text/javascript; charset=utf-8", embedded::uPlot_iife_min_js},
      {"/uplot.css", "text/css; charset=utf-8", embedded::uPlot_min_css},
      {"/uplot-license.txt", "text/plain; charset=utf-8", embedded::LICENSE},
#else
      {"/", "text/plain; charset=utf-8",
       "This build of egeria-controller has no page: npm could not get the library of its charts "
       "(docs/guides/monitoring.md).\n"
       "The metrics are at /metrics, and `egeria top` shows the jobs in a terminal.\n"},
#endif
  };
  return files;
}

}  // namespace egeria::controller
