// SPDX-License-Identifier: BSD-3-Clause
// Archives that are damaged, and the words that refuse them. For the tests of this folder and of models/exported.
#pragma once

#include <string>

#include "sfsdp/testing/zip_bytes.h"

namespace sfsdp::testing {

// A path in the folder for temporary files, of this process alone.
std::string temporary_archive(const std::string& name);
// A file of tests/fixtures/exported: "shared".
std::string exported_fixture(const std::string& name);
ZipParts exported_parts(const std::string& name);

// "" where the archive is read, else the refusal without the path that it begins with. Fails the test where a terminal
// would obey the text, or where it does not begin with the path.
std::string refusal_of_file(const std::string& path);
std::string refusal_of(const std::string& bytes);

// `text`, JSON, with another value at `pointer`; "": without that member.
//   value: as it stands in the file, also what no JSON library would write
std::string json_with(const std::string& text, const std::string& pointer, const std::string& value);

}  // namespace sfsdp::testing
