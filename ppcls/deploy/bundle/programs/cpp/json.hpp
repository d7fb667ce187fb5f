// Reads JSON: enough for bundle.json.
#pragma once

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Json {
    enum Kind { Null, Bool, Number, Text, List, Object } kind = Null;
    double number = 0;  // also of a Bool
    std::string text;
    std::vector<Json> items;
    std::map<std::string, Json> members;

    const Json& operator[](const std::string& key) const {
        auto found = members.find(key);
        if (found == members.end()) throw std::runtime_error("bundle.json: the key " + key + " is missing");
        return found->second;
    }
    bool is_null() const { return kind == Null; }
};

class JsonReader {
public:
    explicit JsonReader(const std::string& text) : text_(text) {}

    Json read() {
        Json value = read_value(0);
        skip_space();
        if (at_ != text_.size()) fail("text after the end");
        return value;
    }

private:
    const std::string& text_;
    size_t at_ = 0;

    [[noreturn]] void fail(const std::string& reason) const {
        throw std::runtime_error("bundle.json: not JSON at byte " + std::to_string(at_) + ": " + reason);
    }
    void skip_space() {
        while (at_ < text_.size() && std::string(" \t\r\n").find(text_[at_]) != std::string::npos) ++at_;
    }
    char peek() {
        skip_space();
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    void expect(char sign) {
        if (peek() != sign) fail(std::string("expected ") + sign);
        ++at_;
    }
    bool take(const std::string& word) {
        if (text_.compare(at_, word.size(), word) != 0) return false;
        at_ += word.size();
        return true;
    }
    Json read_value(int depth) {
        if (depth > 32) fail("too deep");
        Json value;
        switch (peek()) {
            case '{':
                value.kind = Json::Object;
                ++at_;
                while (peek() != '}') {
                    if (!value.members.empty()) expect(',');
                    skip_space();
                    std::string key = read_text();
                    expect(':');
                    value.members[key] = read_value(depth + 1);
                }
                ++at_;
                return value;
            case '[':
                value.kind = Json::List;
                ++at_;
                while (peek() != ']') {
                    if (!value.items.empty()) expect(',');
                    value.items.push_back(read_value(depth + 1));
                }
                ++at_;
                return value;
            case '"':
                value.kind = Json::Text;
                value.text = read_text();
                return value;
        }
        if (take("null")) return value;
        value.kind = Json::Bool;
        if (take("false")) return value;
        value.number = 1;
        if (take("true")) return value;
        value.kind = Json::Number;
        char* end = nullptr;
        value.number = std::strtod(text_.c_str() + at_, &end);
        if (end == text_.c_str() + at_) fail("expected a value");
        at_ = end - text_.c_str();
        return value;
    }
    unsigned read_hex() {
        if (at_ + 4 > text_.size()) fail("incomplete escape");
        unsigned code = std::stoul(text_.substr(at_, 4), nullptr, 16);
        at_ += 4;
        return code;
    }
    void append_utf8(std::string& out, unsigned code) {
        if (code < 0x80) {
            out += char(code);
        } else if (code < 0x800) {
            out += char(0xC0 | code >> 6);
            out += char(0x80 | (code & 63));
        } else if (code < 0x10000) {
            out += char(0xE0 | code >> 12);
            out += char(0x80 | (code >> 6 & 63));
            out += char(0x80 | (code & 63));
        } else {
            out += char(0xF0 | code >> 18);
            out += char(0x80 | (code >> 12 & 63));
            out += char(0x80 | (code >> 6 & 63));
            out += char(0x80 | (code & 63));
        }
    }
    std::string read_text() {
        expect('"');
        std::string out;
        while (at_ < text_.size() && text_[at_] != '"') {
            char sign = text_[at_++];
            if (sign != '\\') {
                out += sign;
                continue;
            }
            if (at_ >= text_.size()) fail("incomplete text");
            sign = text_[at_++];
            switch (sign) {
                case 'n': out += '\n'; break;
                case 't': out += '\t'; break;
                case 'r': out += '\r'; break;
                case 'b': out += '\b'; break;
                case 'f': out += '\f'; break;
                case 'u': {
                    unsigned code = read_hex();
                    if (code >= 0xD800 && code < 0xDC00 && take("\\u")) {
                        code = 0x10000 + ((code - 0xD800) << 10) + (read_hex() - 0xDC00);
                    }
                    append_utf8(out, code);
                    break;
                }
                default: out += sign;
            }
        }
        if (at_ >= text_.size()) fail("incomplete text");
        ++at_;
        return out;
    }
};
