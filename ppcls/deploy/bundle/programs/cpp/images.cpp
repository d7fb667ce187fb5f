#include "images.hpp"

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <jpeglib.h>
#include <png.h>

namespace {

constexpr uint64_t kMaxPixels = 100000000;  // the limit of ppcls

// Returns the orientation 1 to 8 in EXIF data, which begins with the byte order; 1 if there is none.
int find_orientation(const uint8_t* data, size_t size) {
    if (size < 8 || (std::memcmp(data, "II", 2) != 0 && std::memcmp(data, "MM", 2) != 0)) return 1;
    const bool little = data[0] == 'I';
    auto number = [&](size_t at, int bytes) {
        uint32_t value = 0;
        for (int i = 0; i < bytes; ++i) value |= uint32_t(data[at + i]) << 8 * (little ? i : bytes - 1 - i);
        return value;
    };
    const size_t directory = number(4, 4);
    if (directory > size - 2 || size < 2) return 1;
    const size_t count = number(directory, 2);
    for (size_t entry = 0; entry < count; ++entry) {
        const size_t at = directory + 2 + 12 * entry;
        if (at + 12 > size) return 1;
        if (number(at, 2) == 0x0112) {
            const uint32_t value = number(at + 8, 2);
            return value >= 1 && value <= 8 ? int(value) : 1;
        }
    }
    return 1;
}

Pixels turn_upright(const Pixels& image, int orientation) {
    if (orientation == 1) return image;
    const bool swap = orientation >= 5;
    Pixels turned;
    turned.height = swap ? image.width : image.height;
    turned.width = swap ? image.height : image.width;
    turned.values.resize(image.values.size());
    const bool flip_rows = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const bool flip_columns = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    for (size_t y = 0; y < turned.height; ++y) {
        for (size_t x = 0; x < turned.width; ++x) {
            const size_t row = flip_rows ? turned.height - 1 - y : y;
            const size_t column = flip_columns ? turned.width - 1 - x : x;
            const size_t from = swap ? column * image.width + row : row * image.width + column;
            std::memcpy(&turned.values[3 * (y * turned.width + x)], &image.values[3 * from], 3);
        }
    }
    return turned;
}

void check_size(uint64_t height, uint64_t width) {
    if (height * width > kMaxPixels) throw std::runtime_error("the image has more than 100,000,000 pixels");
}

struct JpegErrors {
    jpeg_error_mgr base;  // must be first
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
};

void leave_jpeg(j_common_ptr info) {
    auto* errors = reinterpret_cast<JpegErrors*>(info->err);
    info->err->format_message(info, errors->message);
    std::longjmp(errors->jump, 1);
}

Pixels decode_jpeg(const std::vector<uint8_t>& data) {
    jpeg_decompress_struct info;
    JpegErrors errors;
    Pixels image;
    int orientation = 1;
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave_jpeg;
    errors.base.output_message = [](j_common_ptr) {};
    if (setjmp(errors.jump)) {
        jpeg_destroy_decompress(&info);
        throw std::runtime_error(errors.message);
    }
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, data.data(), data.size());
    jpeg_save_markers(&info, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&info, TRUE);
    for (auto* marker = info.marker_list; marker != nullptr; marker = marker->next) {
        if (marker->data_length > 14 && std::memcmp(marker->data, "Exif\0\0", 6) == 0) {
            orientation = find_orientation(marker->data + 6, marker->data_length - 6);
            break;
        }
    }
    const bool supported = info.num_components == 1 || info.num_components == 3;
    if (!supported || uint64_t(info.image_height) * info.image_width > kMaxPixels) {
        jpeg_destroy_decompress(&info);
        if (!supported) throw std::runtime_error("CMYK is not supported; convert the image to RGB");
        check_size(info.image_height, info.image_width);
    }
    info.out_color_space = JCS_RGB;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&info);
    image.height = info.output_height;
    image.width = info.output_width;
    image.values.resize(3 * image.height * image.width);
    while (info.output_scanline < info.output_height) {
        JSAMPROW row = &image.values[3 * image.width * info.output_scanline];
        jpeg_read_scanlines(&info, &row, 1);
    }
    const bool damaged = errors.base.num_warnings > 0;
    jpeg_finish_decompress(&info);
    jpeg_destroy_decompress(&info);
    if (damaged) throw std::runtime_error("the JPEG file is damaged");
    return turn_upright(image, orientation);
}

struct Source {
    const std::vector<uint8_t>& data;
    size_t at;
};

void read_png(png_structp png, png_bytep target, png_size_t count) {
    auto* source = static_cast<Source*>(png_get_io_ptr(png));
    if (source->data.size() - source->at < count) png_error(png, "the file is truncated");
    std::memcpy(target, source->data.data() + source->at, count);
    source->at += count;
}

Pixels decode_png(const std::vector<uint8_t>& data) {
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png_create_info_struct(png);
    Source source{data, 0};
    Pixels image;
    std::vector<uint8_t> raw;
    std::vector<png_bytep> rows;
    int orientation = 1;
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_read_struct(&png, &info, nullptr);
        throw std::runtime_error("the PNG file is damaged");
    }
    png_set_read_fn(png, &source, read_png);
    png_read_info(png, info);
    image.height = png_get_image_height(png, info);
    image.width = png_get_image_width(png, info);
    if (uint64_t(image.height) * image.width > kMaxPixels) png_error(png, "too many pixels");
    const int bits = png_get_bit_depth(png, info);
    const int kind = png_get_color_type(png, info);
    if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (kind == PNG_COLOR_TYPE_GRAY && bits < 8) png_set_expand_gray_1_2_4_to_8(png);
    if ((kind & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    const size_t bytes = bits == 16 ? 2 : 1;
    const size_t stride = png_get_rowbytes(png, info);
    if (stride != 3 * bytes * image.width) png_error(png, "unexpected channels");
    raw.resize(stride * image.height);
    for (size_t y = 0; y < image.height; ++y) rows.push_back(&raw[y * stride]);
    png_read_image(png, rows.data());
    png_read_end(png, info);
#ifdef PNG_eXIf_SUPPORTED
    png_uint_32 length = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png, info, &length, &exif) != 0) orientation = find_orientation(exif, length);
#endif
    png_destroy_read_struct(&png, &info, nullptr);
    if (bytes == 1) {
        image.values = std::move(raw);
    } else {  // rounds 16-bit samples
        image.values.resize(raw.size() / 2);
        for (size_t i = 0; i < image.values.size(); ++i) {
            image.values[i] = uint8_t((uint32_t(raw[2 * i]) * 256 + raw[2 * i + 1] + 128) / 257);
        }
    }
    return turn_upright(image, orientation);
}

}  // namespace

std::vector<uint8_t> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + ": cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

Pixels decode(const std::vector<uint8_t>& data, const std::string& path) {
    try {
        if (data.size() > 3 && data[0] == 0xFF && data[1] == 0xD8) return decode_jpeg(data);
        if (data.size() > 8 && std::memcmp(data.data(), "\x89PNG\r\n\x1a\n", 8) == 0) return decode_png(data);
        throw std::runtime_error("expected a JPEG or PNG file");
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(path + ": " + error.what());
    }
}
