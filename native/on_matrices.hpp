// The part that all operations on packed matrices share: the attribute that tells how their matrices lie, and checks of sizes.
// Included by the files of operations; the graph calls them on the threads that operations.cpp tells of.
#pragma once

#include <openvino/op/op.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "pack.hpp"
#include "product.hpp"
#include "threads.hpp"

namespace dragoman {

// What each operation on packed matrices has: their attribute, "format group outputs columns" of each with commas between.
class OnMatrices : public ov::op::Op {
public:
    OnMatrices() = default;
    OnMatrices(const ov::OutputVector& inputs, const std::string& matrices) : Op(inputs), text_(matrices) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("matrices", text_);
        return true;
    }
    bool has_evaluate() const override { return true; }

protected:
    // Reads the attribute; the matrices are the inputs from the second on.
    void read_matrices() {
        matrices_.clear();
        std::istringstream all(text_);
        for (std::string text; std::getline(all, text, ',');) {
            std::istringstream words(text);
            std::string format;
            Matrix matrix{};
            words >> format >> matrix.group >> matrix.outputs >> matrix.columns;
            NODE_VALIDATION_CHECK(this, words && find_format(format.c_str(), &matrix.format) && is_valid(matrix),
                                  "no matrix is packed as '", text, "'");
            matrices_.push_back(matrix);
        }
        NODE_VALIDATION_CHECK(this, !matrices_.empty() && get_input_size() > matrices_.size(), matrices_.size(), " matrices and ",
                              get_input_size(), " inputs");
        for (size_t i = 0; i < matrices_.size(); ++i) {
            NODE_VALIDATION_CHECK(this, get_input_element_type(i + 1) == ov::element::u8, "a matrix is ",
                                  get_input_element_type(i + 1), ", not u8");
            const ov::PartialShape& shape = get_input_partial_shape(i + 1);
            if (shape.is_static()) check_bytes(matrices_[i], ov::shape_size(shape.to_shape()));
        }
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

    // Matrix `index`, which lies in the input behind those before it.
    Matrix matrix_in(const ov::TensorVector& inputs, size_t index) const {
        Matrix matrix = matrices_[index];
        check_bytes(matrix, inputs[index + 1].get_byte_size());
        matrix.data = static_cast<const uint8_t*>(inputs[index + 1].data());
        return matrix;
    }

    Input rows_in(const ov::Tensor& tensor) const {
        const int64_t columns = matrices_[0].columns;
        OPENVINO_ASSERT(tensor.get_shape().back() == static_cast<size_t>(columns), "rows are ", tensor.get_shape(),
                        ", the matrix has ", columns, " columns");
        return {tensor.data<const float>(), static_cast<int64_t>(tensor.get_size()) / columns, columns};
    }

    std::vector<Matrix> matrices_;
    std::string text_;

private:
    static bool is_valid(const Matrix& matrix) {
        const int only = shape_of(matrix.format).columns;
        const bool is_whole = matrix.group > 0 && (matrix.group % kChunk == 0 || matrix.group >= matrix.columns);
        return matrix.outputs > 0 && matrix.columns > 0 && is_whole &&
               (only == 0 || (matrix.group == only && matrix.columns % only == 0));
    }

    void check_bytes(const Matrix& matrix, size_t bytes) const {
        OPENVINO_ASSERT(bytes == static_cast<size_t>(matrix.bytes()), "the matrix ", matrix.outputs, " by ", matrix.columns,
                        " in format ", dragoman::shape_of(matrix.format).name, " has ", matrix.bytes(), " bytes, not ", bytes);
    }
};

inline const float* floats_or_null(const ov::TensorVector& inputs, size_t index) {
    return index < inputs.size() ? inputs[index].data<const float>() : nullptr;
}

}  // namespace dragoman
