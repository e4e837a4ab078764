// king_james.h - the King James Bible, from Debian's package bible-kjv.
#pragma once

#include <string>

namespace tarn::apps {

/// The whole text, a verse a line without its number, an empty line between chapters. Asks the
/// program `bible`, found through PATH. Throws FileError if it is not installed.
std::string king_james_text();

/// What the program prints with references ("Ge1:1 In the ...") as text without them.
std::string without_references(const std::string& printed);

}  // namespace tarn::apps
