// Decodes JPEG and PNG files to upright RGB pixels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Pixels {
    size_t height = 0;
    size_t width = 0;
    std::vector<uint8_t> values;  // [height, width, 3], RGB
};

std::vector<uint8_t> read_file(const std::string& path);

// Decodes the content of a file, and applies its EXIF orientation. Alpha is ignored.
Pixels decode(const std::vector<uint8_t>& data, const std::string& path);
