// Predicts the classes of images with a bundle, and verifies the bundle:
//
//     predict BUNDLE photo.jpg ...
//     predict BUNDLE verify

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include <openvino/openvino.hpp>

#include "images.hpp"
#include "json.hpp"

using Values = std::vector<float>;

struct Outputs {  // of each stage, for one image; empty if the model does not return it
    Values prepared;
    Values logits;
    Values probabilities;
    Values known_score;  // for the answer unknown
};

struct Judgement {  // the image belongs to no class if the score is below the limit
    double score;
    double limit;
};

class Bundle {
public:
    explicit Bundle(const std::string& folder) : folder_(folder) {
        const auto text = read_file(folder + "/bundle.json");
        json = JsonReader(std::string(text.begin(), text.end())).read();
        const Json& model = json["model"];
        // Float32, as in ONNX Runtime; by default, some CPUs would compute in bfloat16.
        compiled_ = ov::Core().compile_model(path(model["file"]), "CPU",
                                             ov::hint::inference_precision(ov::element::f32));
        request_ = compiled_.create_infer_request();
    }

    Json json;

    std::string path(const Json& name) const {
        static const std::regex pattern("\\w[\\w.-]*(/\\w[\\w.-]*)*");
        if (!std::regex_match(name.text, pattern)) {
            throw std::runtime_error("bundle.json: expected a path in the bundle, got " + name.text);
        }
        return folder_ + "/" + name.text;
    }

    Outputs run(Pixels& image) {
        ov::Tensor input(ov::element::u8, {1, image.height, image.width, 3}, image.values.data());
        request_.set_input_tensor(input);
        request_.infer();
        const Json& model = json["model"];
        return {output(model["prepared"]), output(model["logits"]), output(model["probabilities"]),
                output(model["known_score"])};
    }

    // Returns the numbers of the selected classes, in descending order of their scores.
    std::vector<size_t> select(const Values& scores) const {
        const Json& decision = json["decision"];
        std::vector<size_t> order(scores.size());
        std::iota(order.begin(), order.end(), size_t(0));
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
        if (decision["method"].text == "topk") {
            order.resize(std::min(order.size(), size_t(decision["topk"].number)));
            return order;
        }
        auto reaches = [&](size_t k) { return scores[k] >= threshold(k); };
        if (decision["method"].text == "binary") return {size_t(reaches(1))};
        std::vector<size_t> selected;
        std::copy_if(order.begin(), order.end(), std::back_inserter(selected), reaches);
        return selected;
    }

    // Returns whether two selections are equal, or differ only by expected scores that are nearly tied.
    bool same_selection(const std::vector<size_t>& selected, const std::vector<size_t>& expected,
                        const Values& scores, double allowed) const {
        auto near = [&](double a, double b) { return std::abs(a - b) <= 2 * allowed; };
        const std::string& method = json["decision"]["method"].text;
        if (method == "topk") {
            return std::equal(selected.begin(), selected.end(), expected.begin(), expected.end(),
                              [&](size_t a, size_t b) { return near(scores.at(a), scores.at(b)); });
        }
        const std::set<size_t> actual(selected.begin(), selected.end());
        const std::set<size_t> wanted(expected.begin(), expected.end());
        std::vector<size_t> changed;
        std::set_symmetric_difference(actual.begin(), actual.end(), wanted.begin(), wanted.end(),
                                      std::back_inserter(changed));
        if (!changed.empty() && method == "binary") changed = {1};
        return std::all_of(changed.begin(), changed.end(),
                           [&](size_t k) { return near(scores.at(k), threshold(k)); });
    }

    // Returns the score for the answer unknown and its limit, which is 0 without a rule.
    Judgement judge(const Outputs& outputs) const {
        const Values& scores = outputs.probabilities;
        const size_t best = std::max_element(scores.begin(), scores.end()) - scores.begin();
        const double score = outputs.known_score.empty() ? scores.at(best) : outputs.known_score[0];
        const Json& rule = json["rejection"];
        if (rule.is_null()) return {score, 0};
        const Json& limit = rule["threshold"];
        return {score, limit.kind == Json::List ? limit.items.at(best).number : limit.number};
    }

private:
    std::string folder_;
    ov::CompiledModel compiled_;
    ov::InferRequest request_;

    double threshold(size_t k) const {
        const Json& limit = json["decision"]["threshold"];
        return limit.kind == Json::List ? limit.items.at(k).number : limit.number;
    }

    Values output(const Json& name) {
        if (name.is_null()) return {};
        const ov::Tensor tensor = request_.get_tensor(compiled_.output(name.text));
        const float* first = tensor.data<const float>();
        return Values(first, first + tensor.get_size());
    }
};

struct Failure {
    std::string stage;
    std::string text;
};

template <typename T>
std::optional<Failure> compare(const std::string& stage, const std::vector<T>& actual,
                               const std::vector<T>& expected, double most, double mean_allowed) {
    std::ostringstream text;
    if (actual.size() != expected.size()) {
        text << "expected " << expected.size() << " values, got " << actual.size();
        return Failure{stage, text.str()};
    }
    double largest = 0;
    double sum = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
        const double apart = std::abs(double(actual[i]) - double(expected[i]));
        largest = apart <= largest ? largest : apart;  // also NaN
        sum += apart;
    }
    const double mean = sum / std::max<size_t>(1, actual.size());
    if (largest <= most && mean <= mean_allowed) return std::nullopt;
    text << "largest difference " << largest << " (allowed " << most << "), mean " << mean << " (allowed "
         << mean_allowed << ")";
    return Failure{stage, text.str()};
}

template <typename T>
std::vector<T> expected_values(const std::string& path) {
    const auto bytes = read_file(path);  // little-endian, as on x86 and ARM
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
}

// Returns the first stage of a golden sample that differs. Each stage receives the expected output of the one
// before.
std::optional<Failure> verify_sample(Bundle& bundle, const Json& sample, double& largest) {
    const Json& limits = bundle.json["tolerances"];
    Pixels decoded = decode(read_file(bundle.path(sample["image"])), sample["image"].text);
    Pixels expected{size_t(sample["height"].number), size_t(sample["width"].number),
                    expected_values<uint8_t>(bundle.path(sample["decoded"]))};
    const Values probabilities = expected_values<float>(bundle.path(sample["probabilities"]));
    const Outputs outputs = bundle.run(expected);
    const bool same = decoded.values == expected.values && decoded.width == expected.width;
    const Values whole = same ? outputs.probabilities : bundle.run(decoded).probabilities;
    for (size_t k = 0; k < whole.size(); ++k) {
        largest = std::max(largest, double(std::abs(whole[k] - probabilities.at(k))));
    }
    const std::string& name = sample["image"].text;
    const bool lossy = name.size() > 4 && name.compare(name.size() - 4, 4, ".jpg") == 0;
    const auto& levels = limits["decoding"].items;
    if (decoded.height != expected.height || decoded.width != expected.width) {
        return Failure{"decoding", "another size: check the EXIF orientation"};
    }
    auto failure = compare("decoding", decoded.values, expected.values, lossy ? levels.at(0).number : 0,
                           lossy ? levels.at(1).number : 0);
    if (failure) return failure;
    if (!sample["prepared"].is_null()) {
        const auto& pair = limits["resizing"].items;
        failure = compare("resizing", outputs.prepared, expected_values<float>(bundle.path(sample["prepared"])),
                          pair.at(0).number, pair.at(1).number);
        if (failure) return failure;
    }
    if (!sample["logits"].is_null()) {
        const double most = limits["logits"].number;
        failure = compare("network", outputs.logits, expected_values<float>(bundle.path(sample["logits"])), most,
                          most);
        if (failure) return failure;
    }
    const double most = limits["probabilities"].number;
    failure = compare("post-processing", outputs.probabilities, probabilities, most, most);
    if (failure) return failure;
    const auto selected = bundle.select(outputs.probabilities);
    std::vector<size_t> classes;
    for (const Json& number : sample["classes"].items) classes.push_back(size_t(number.number));
    if (!bundle.same_selection(selected, classes, probabilities, most)) return Failure{"post-processing", "other classes are selected"};
    if (bundle.json["rejection"].is_null()) return std::nullopt;
    const auto [score, limit] = bundle.judge(outputs);
    const double wanted = sample["known_score"].number;
    const double allowed = outputs.known_score.empty() ? most : limits["known_score"].number;
    if (!(std::abs(score - wanted) <= allowed)) {
        return Failure{"post-processing", "the score for unknown is " + std::to_string(score) + ", expected " +
                                              std::to_string(wanted)};
    }
    if ((score < limit) != (wanted < limit) && std::abs(wanted - limit) > 2 * allowed) {
        return Failure{"post-processing", "another answer: unknown"};
    }
    return std::nullopt;
}

int verify(Bundle& bundle) {
    const char* stages[] = {"decoding", "resizing", "network", "post-processing"};
    const auto& samples = bundle.json["golden"].items;
    std::vector<std::pair<std::string, Failure>> failures;
    double largest = 0;
    for (const Json& sample : samples) {
        if (auto failure = verify_sample(bundle, sample, largest)) {
            failures.emplace_back(sample["image"].text, *failure);
        }
    }
    if (failures.empty()) {
        std::printf("PASS: %zu of %zu, largest difference %.1e\n", samples.size(), samples.size(), largest);
        return 0;
    }
    for (const char* stage : stages) {
        for (const auto& [image, failure] : failures) {
            if (failure.stage != stage) continue;
            std::printf("FAIL: %zu of %zu; first stage that differs: %s\n%s: %s: %s\n",
                        samples.size() - failures.size(), samples.size(), stage, image.c_str(), stage,
                        failure.text.c_str());
            return 3;
        }
    }
    return 3;
}

void predict(Bundle& bundle, const std::string& path) {
    Pixels image = decode(read_file(path), path);
    const Outputs outputs = bundle.run(image);
    const Values& scores = outputs.probabilities;
    std::string line = path + ":";
    const auto [score, limit] = bundle.judge(outputs);
    if (!bundle.json["rejection"].is_null() && score < limit) {
        std::printf("%s unknown, score %.4f\n", line.c_str(), score);
        return;
    }
    for (size_t k : bundle.select(scores)) {
        char score[32];
        std::snprintf(score, sizeof score, " %.2f%%,", 100 * scores[k]);
        line += " " + bundle.json["classes"].items.at(k).text + score;
    }
    if (line.back() == ',') line.pop_back();
    std::printf("%s\n", line.c_str());
}

int main(int count, char** words) {
    if (count < 3) {
        std::fprintf(stderr, "usage: predict BUNDLE verify | predict BUNDLE IMAGE ...\n");
        return 2;
    }
    try {
        Bundle bundle(words[1]);
        if (count == 3 && std::string(words[2]) == "verify") return verify(bundle);
        int code = 0;
        for (int i = 2; i < count; ++i) {
            try {
                predict(bundle, words[i]);
            } catch (const std::runtime_error& error) {
                std::printf("error: %s\n", error.what());
                code = 1;
            }
        }
        return code;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
