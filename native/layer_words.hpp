// The words by which operations tell what stands before and behind attention in a layer, and the numbers that belong to them.
// Included by the files of operations.
#pragma once

#include <cstdint>
#include <istream>
#include <locale>
#include <memory>
#include <openvino/core/attribute_visitor.hpp>
#include <openvino/core/except.hpp>
#include <openvino/core/node.hpp>
#include <openvino/runtime/tensor.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "layer.hpp"

namespace dragoman {

// The attribute "how" and what it says, which copies of an operation share.
template <class Said>
class How {
public:
    void visit(ov::AttributeVisitor& visitor) {
        std::string text = read_->text;
        visitor.on_attribute("how", text);
        if (text == read_->text) return;
        auto read = std::make_shared<Read>();
        read->text = text;
        std::istringstream words(text);
        words.imbue(std::locale::classic());
        words >> read->said;
        OPENVINO_ASSERT(!words.fail(), "an operation of a layer cannot be '", text, "'");
        read_ = read;
    }
    const Said* operator->() const { return &read_->said; }

private:
    struct Read {
        std::string text;
        Said said;
    };
    std::shared_ptr<const Read> read_ = std::make_shared<Read>();
};

// Hands out the vectors in an input one after the other.
class Vectors {
public:
    explicit Vectors(const ov::Tensor& tensor)
        : at_(tensor.data<const float>()), left_(static_cast<int64_t>(tensor.get_size())) {}

    // The next `size` numbers, null if there are none.
    const float* take(int64_t size) {
        OPENVINO_ASSERT(size <= left_, "there are ", left_, " numbers left, not ", size);
        const float* vector = size ? at_ : nullptr;
        at_ += size;
        left_ -= size;
        return vector;
    }
    void finish() const { OPENVINO_ASSERT(left_ == 0, left_, " numbers too many"); }

private:
    const float* at_;
    int64_t left_;
};

// A norm as attributes have it: its size, 0 = there is none, and epsilon.
struct NormSize {
    int64_t size = 0;
    float epsilon = 0;

    Norm with(Vectors& numbers) const { return {size, numbers.take(size), epsilon}; }
    bool divides(int64_t width) const { return size >= 0 && (size == 0 || width % size == 0); }
};

inline std::istream& operator>>(std::istream& words, NormSize& norm) { return words >> norm.size >> norm.epsilon; }

// "norm has_bias (norm head turned)...": of the rows, whether products have biases, and of each product.
struct Before {
    NormSize norm;
    bool has_bias = false;
    struct One {
        NormSize norm;
        int64_t head = 0, turned = 0;
    };
    std::vector<One> products;

    int64_t turned() const {
        for (const One& one : products)
            if (one.turned) return one.turned;
        return 0;
    }

    // What does not fit those matrices, "" if all does.
    std::string fault(const Matrix* matrices, size_t count) const {
        std::ostringstream told;
        if (products.size() != count) told << products.size() << " products of " << count << " matrices";
        for (size_t i = 0; i < count && told.tellp() == 0; ++i) {
            const One& one = products[i];
            const int64_t outputs = matrices[i].outputs;
            if (matrices[i].columns != matrices[0].columns || (norm.size && norm.size != matrices[i].columns))
                told << "the norm has " << norm.size << " columns, a matrix " << matrices[i].columns;
            else if (!one.norm.divides(outputs) || one.turned < 0 || one.turned % 2 ||
                     (one.turned && (one.turned != turned() || one.turned > one.head || outputs % one.head)))
                told << outputs << " outputs do not fit heads of " << one.head << ", of which " << one.turned
                     << " are turned, or a norm of " << one.norm.size;
        }
        return told.str();
    }

    // The products, which write nowhere yet, and what their results go through. Returns the norm of the rows.
    Norm with(Vectors& numbers, const Matrix* matrices, Product* to, Heads* heads) const {
        const Norm of_rows = norm.with(numbers);
        for (size_t i = 0; i < products.size(); ++i) {
            const One& one = products[i];
            to[i] = {matrices[i], numbers.take(has_bias ? matrices[i].outputs : 0), nullptr, matrices[i].outputs};
            heads[i] = {one.norm.with(numbers), one.head, one.turned};
        }
        return of_rows;
    }
};

inline std::istream& operator>>(std::istream& words, Before& before) {
    words >> before.norm >> before.has_bias;
    if (!words) return words;
    for (Before::One one; words >> one.norm >> one.head >> one.turned;) before.products.push_back(one);
    if (words.eof()) words.clear(std::ios::eofbit);  // how many there are is checked against the matrices
    return words;
}

// "scale output_bias mlp_bias output_norm norm mlp_norm"
struct After {
    float scale = 1;
    bool has_output_bias = false, has_mlp_bias = false;
    NormSize output_norm, norm, mlp_norm;

    // What does not fit the matrices of output, gate, up and down, "" if all does.
    std::string fault(const Matrix* matrices) const {
        const Matrix &output = matrices[0], &gate = matrices[1], &up = matrices[2], &down = matrices[3];
        const int64_t hidden = output.outputs;
        std::ostringstream told;
        if (gate.columns != hidden || up.columns != hidden || up.outputs != gate.outputs || down.columns != gate.outputs ||
            down.outputs != hidden)
            told << "output, gate, up and down do not fit";
        for (const NormSize* one : {&output_norm, &norm, &mlp_norm})
            if (one->size && one->size != hidden && told.tellp() == 0)
                told << "a norm has " << one->size << " columns, not " << hidden;
        return told.str();
    }

    OutputAndMlp with(Vectors& numbers, const Matrix* matrices, const Gating& gating) const {
        const int64_t hidden = matrices[0].outputs, inner = matrices[1].outputs;
        OutputAndMlp layer{};
        layer.output = matrices[0];
        layer.output_bias = numbers.take(has_output_bias ? hidden : 0);
        layer.mlp = {matrices[1], matrices[2], matrices[3], nullptr, nullptr, nullptr, gating};
        layer.mlp.gate_bias = numbers.take(has_mlp_bias ? inner : 0);
        layer.mlp.up_bias = numbers.take(has_mlp_bias ? inner : 0);
        layer.mlp.down_bias = numbers.take(has_mlp_bias ? hidden : 0);
        layer.output_norm = output_norm.with(numbers);
        layer.norm = norm.with(numbers);
        layer.mlp_norm = mlp_norm.with(numbers);
        layer.scale = scale;
        return layer;
    }
};

inline std::istream& operator>>(std::istream& words, After& after) {
    words >> after.scale >> after.has_output_bias >> after.has_mlp_bias;
    return words >> after.output_norm >> after.norm >> after.mlp_norm;
}

// Has a node and what it is computed from stay f32 where the plugin computes in bf16: it knows this of positions and angles that its
// own operation reads. It asks for f16 whatever type it computes in.
void keep_f32(const std::shared_ptr<ov::Node>& node);

}  // namespace dragoman
