// The part that all operations on packed matrices share: the attribute that tells how their matrices lie, and checks of sizes.
// Included by the files of operations; the graph calls them on the threads that operations.cpp tells of.
#pragma once

#include <locale>
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/op/op.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "pack.hpp"
#include "product.hpp"
#include "threads.hpp"

namespace dragoman {

// The matrices of an operation, read once from its attribute: "format group outputs columns memory offset" of each with commas
// between, where memory is the number under which it is held.
struct Matrices {
    std::string text;
    std::vector<Matrix> all;
    std::vector<std::shared_ptr<const Memory>> memory;
};

// What each operation on packed matrices has. The plugin copies an operation for each call to learn the shapes of its results:
// copies share what was read from attributes, and their checks cost little. Matrices are no inputs, each of which would be made a
// node and a tensor for each call.
class OnMatrices : public ov::op::Op {
public:
    OnMatrices() = default;
    OnMatrices(const ov::OutputVector& inputs, const OnMatrices& other)
        : Op(inputs), copies_(other.copies_), matrices_(other.matrices_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        std::string text = matrices_->text;
        visitor.on_attribute("matrices", text);
        if (text != matrices_->text) matrices_ = read(text);
        return true;
    }
    bool has_evaluate() const override { return true; }

protected:
    const std::vector<Matrix>& matrices() const { return matrices_->all; }

    // Checks how many matrices and inputs there are.
    void check_counts(bool do_fit) const {
        NODE_VALIDATION_CHECK(this, !matrices().empty() && do_fit, matrices().size(), " matrices and ", get_input_size(),
                              " inputs");
    }

    // Checks that rows have the columns of that matrix. Returns their shape with `outputs` in the place of columns.
    ov::PartialShape shape_of_results(const Matrix& matrix, int64_t outputs) const {
        NODE_VALIDATION_CHECK(this, get_input_element_type(0) == ov::element::f32, "rows are ", get_input_element_type(0),
                              ", not f32");
        ov::PartialShape shape = get_input_partial_shape(0);
        NODE_VALIDATION_CHECK(this, shape.rank().is_static() && shape.size() > 0, "rows have no columns");
        NODE_VALIDATION_CHECK(this, shape[shape.size() - 1].compatible(matrix.columns), "rows are ", shape, ", the matrix has ",
                              matrix.columns, " columns");
        shape[shape.size() - 1] = outputs;
        return shape;
    }

    // Checks that input `index` is a bias of that matrix.
    void check_bias(size_t index, const Matrix& matrix) const {
        NODE_VALIDATION_CHECK(this,
                              get_input_element_type(index) == ov::element::f32 &&
                                  get_input_partial_shape(index).compatible(ov::PartialShape{matrix.outputs}),
                              "a bias is ", get_input_element_type(index), get_input_partial_shape(index), ", not f32[",
                              matrix.outputs, "]");
    }

    Input rows_in(const ov::Tensor& tensor) const {
        const int64_t columns = matrices()[0].columns;
        OPENVINO_ASSERT(tensor.get_shape().back() == static_cast<size_t>(columns), "rows are ", tensor.get_shape(),
                        ", the matrix has ", columns, " columns");
        return {tensor.data<const float>(), static_cast<int64_t>(tensor.get_size()) / columns, columns};
    }

    int64_t copies_ = 1;  // of each matrix, one behind the other

private:
    std::shared_ptr<const Matrices> read(const std::string& text) const {
        auto read = std::make_shared<Matrices>();
        read->text = text;
        std::istringstream all(text);
        for (std::string part; std::getline(all, part, ',');) {
            std::istringstream words(part);
            std::string format;
            Matrix matrix{};
            int64_t number = 0, offset = 0;
            words >> format >> matrix.group >> matrix.outputs >> matrix.columns >> number >> offset;
            OPENVINO_ASSERT(words && find_format(format.c_str(), &matrix.format) && is_valid(matrix), "no matrix is packed as '",
                            part, "'");
            auto memory = held_memory(number);
            OPENVINO_ASSERT(memory, "there is no memory ", number, " any more for a matrix");
            check_bytes(matrix, offset, memory->size());
            matrix.data = memory->data() + offset;
            read->all.push_back(matrix);
            read->memory.push_back(std::move(memory));
        }
        return read;
    }

    static bool is_valid(const Matrix& matrix) {
        const int only = shape_of(matrix.format).columns;
        const bool is_whole = matrix.group > 0 && (matrix.group % kChunk == 0 || matrix.group >= matrix.columns);
        return matrix.outputs > 0 && matrix.columns > 0 && is_whole &&
               (only == 0 || (matrix.group == only && matrix.columns % only == 0));
    }

    void check_bytes(const Matrix& matrix, int64_t offset, int64_t bytes) const {
        OPENVINO_ASSERT(offset >= 0 && offset % kLine == 0 && copies_ * matrix.bytes() <= bytes - offset, copies_,
                        " of the matrix ", matrix.outputs, " by ", matrix.columns, " in format ",
                        dragoman::shape_of(matrix.format).name, " have ", copies_ * matrix.bytes(), " bytes, and from ", offset,
                        " on there are ", bytes - offset);
    }

    std::shared_ptr<const Matrices> matrices_ = std::make_shared<Matrices>();
};

// What stands between the products of a gated MLP, and its text: its name, behind bounded_swiglu with its gain and limit.
struct NamedGating : Gating {
    std::string text = "silu";
};

// The gating of that text.
inline NamedGating read_gating(const std::string& text) {
    constexpr const char* names[] = {"silu", "relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "bounded_swiglu"};
    NamedGating gating;
    gating.text = text;
    std::istringstream words(text);
    words.imbue(std::locale::classic());
    std::string name;
    words >> name;
    int kind = 0;
    while (kind < static_cast<int>(Activation::count) && name != names[kind]) ++kind;
    gating.activation = static_cast<Activation>(kind);
    if (gating.activation == Activation::bounded_swiglu) words >> gating.gain >> gating.limit;
    OPENVINO_ASSERT(words && gating.activation != Activation::count, "activation '", text, "' is unknown");
    return gating;
}

// The attribute "activation" of a gated MLP.
inline void visit_activation(ov::AttributeVisitor& visitor, NamedGating& gating) {
    std::string text = gating.text;
    visitor.on_attribute("activation", text);
    gating = read_gating(text);
}

// The operations that have a file of their own.
std::shared_ptr<ov::Extension> attention_extension();
std::shared_ptr<ov::Extension> recurrence_extension();
std::shared_ptr<ov::Extension> experts_extension();
std::shared_ptr<ov::Extension> normed_products_extension();
std::shared_ptr<ov::Extension> output_and_mlp_extension();
std::shared_ptr<ov::Extension> layers_extension();

inline const float* floats_or_null(const ov::TensorVector& inputs, size_t index) {
    return index < inputs.size() ? inputs[index].data<const float>() : nullptr;
}

}  // namespace dragoman
