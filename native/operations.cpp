// The graph's operations, and what else the library shows to the outside.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute. The CPU plugin calls `evaluate` on a
// thread of its own, once per inference. What is wrong with sizes is thrown where the graph is made, or else where it runs.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>
#include <string>
#include <vector>

#include "pack.hpp"
#include "product.hpp"
#include "threads.hpp"

namespace dragoman {

namespace {

const ParallelFor kOnThreads = on_threads;

// What each operation on a packed matrix has: the matrix' input, and the attributes that say what lies in it.
class OnMatrix : public ov::op::Op {
public:
    OnMatrix() = default;
    explicit OnMatrix(const ov::OutputVector& inputs, const std::string& format, int64_t group, int64_t outputs, int64_t columns)
        : Op(inputs), format_(format), group_(group), outputs_(outputs), columns_(columns) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("format", format_);
        visitor.on_attribute("group", group_);
        visitor.on_attribute("outputs", outputs_);
        visitor.on_attribute("columns", columns_);
        return true;
    }
    bool has_evaluate() const override { return true; }

protected:
    // Checks the attributes, and what is known of the packed input.
    void check_matrix(size_t input) {
        NODE_VALIDATION_CHECK(this, find_format(format_.c_str(), &matrix_.format), "format '", format_, "' is unknown");
        NODE_VALIDATION_CHECK(this, outputs_ > 0 && columns_ > 0, "a matrix of ", outputs_, " by ", columns_, " is empty");
        const bool is_whole = group_ > 0 && (group_ % kChunk == 0 || group_ >= columns_);
        const int only = shape_of(matrix_.format).columns;
        NODE_VALIDATION_CHECK(this, is_whole && (only == 0 || group_ == only), "there are no groups of ", group_,
                              " columns in format ", format_);
        matrix_.group = group_;
        matrix_.outputs = outputs_;
        matrix_.columns = columns_;
        NODE_VALIDATION_CHECK(this, get_input_element_type(input) == ov::element::u8, "the matrix is ",
                              get_input_element_type(input), ", not u8");
        const ov::PartialShape& shape = get_input_partial_shape(input);
        if (shape.is_static()) check_bytes(ov::shape_size(shape.to_shape()));
    }

    // The matrix that lies in a tensor.
    Matrix matrix_in(const ov::Tensor& tensor) const {
        check_bytes(tensor.get_byte_size());
        Matrix matrix = matrix_;
        matrix.data = static_cast<const uint8_t*>(tensor.data());
        return matrix;
    }

    std::string format_;
    int64_t group_ = 0;
    int64_t outputs_ = 0;
    int64_t columns_ = 0;

private:
    void check_bytes(size_t bytes) const {
        OPENVINO_ASSERT(bytes == static_cast<size_t>(matrix_.bytes()), "the matrix ", outputs_, " by ", columns_, " in format ",
                        format_, " has ", matrix_.bytes(), " bytes, not ", bytes);
    }

    Matrix matrix_{};
};

}  // namespace

// x [..., columns] f32, packed matrix u8, bias [outputs] f32 or none: [..., outputs] f32.
class ProductOperation : public OnMatrix {
public:
    OPENVINO_OP("Product", "dragoman");
    using OnMatrix::OnMatrix;

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, get_input_size() == 2 || get_input_size() == 3, "2 or 3 inputs, not ", get_input_size());
        check_matrix(1);
        NODE_VALIDATION_CHECK(this, get_input_element_type(0) == ov::element::f32, "rows are ", get_input_element_type(0),
                              ", not f32");
        ov::PartialShape shape = get_input_partial_shape(0);
        NODE_VALIDATION_CHECK(this, shape.rank().is_static() && shape.size() > 0, "rows have no columns");
        NODE_VALIDATION_CHECK(this, shape[shape.size() - 1].compatible(columns_), "rows are ", shape, ", the matrix has ",
                              columns_, " columns");
        if (get_input_size() == 3) {
            NODE_VALIDATION_CHECK(this,
                                  get_input_element_type(2) == ov::element::f32 &&
                                      get_input_partial_shape(2).compatible(ov::PartialShape{outputs_}),
                                  "the bias is ", get_input_element_type(2), get_input_partial_shape(2), ", not f32[", outputs_,
                                  "]");
        }
        shape[shape.size() - 1] = outputs_;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<ProductOperation>(inputs, format_, group_, outputs_, columns_);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        ov::Shape shape = inputs[0].get_shape();
        OPENVINO_ASSERT(shape.back() == static_cast<size_t>(columns_), "rows are ", shape, ", the matrix has ", columns_,
                        " columns");
        const Matrix matrix = matrix_in(inputs[1]);
        const int64_t num_rows = inputs[0].get_size() / columns_;
        shape.back() = outputs_;
        results[0].set_shape(shape);
        const float* bias = nullptr;
        if (inputs.size() == 3) {
            OPENVINO_ASSERT(inputs[2].get_size() == static_cast<size_t>(outputs_), "the bias has ", inputs[2].get_size(),
                            " values, not ", outputs_);
            bias = inputs[2].data<const float>();
        }
        const Product product{matrix, bias, results[0].data<float>(), outputs_};
        products(&product, 1, {inputs[0].data<const float>(), num_rows, columns_}, kOnThreads);
        return true;
    }
};

// indices [...] of i32 or i64, packed matrix u8: those rows of it, [..., columns] f32.
class RowsOperation : public OnMatrix {
public:
    OPENVINO_OP("Rows", "dragoman");
    using OnMatrix::OnMatrix;

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, get_input_size() == 2, "2 inputs, not ", get_input_size());
        check_matrix(1);
        const ov::element::Type& type = get_input_element_type(0);
        NODE_VALIDATION_CHECK(this, type == ov::element::i32 || type == ov::element::i64, "indices are ", type,
                              ", not i32 or i64");
        ov::PartialShape shape = get_input_partial_shape(0);
        NODE_VALIDATION_CHECK(this, shape.rank().is_static(), "the rank of the indices is unknown");
        shape.push_back(columns_);
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<RowsOperation>(inputs, format_, group_, outputs_, columns_);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Matrix matrix = matrix_in(inputs[1]);
        thread_local std::vector<int64_t> rows;
        if (inputs[0].get_element_type() == ov::element::i32) {
            const int32_t* indices = inputs[0].data<const int32_t>();
            rows.assign(indices, indices + inputs[0].get_size());
        } else {
            const int64_t* indices = inputs[0].data<const int64_t>();
            rows.assign(indices, indices + inputs[0].get_size());
        }
        for (int64_t row : rows) {
            OPENVINO_ASSERT(row >= 0 && row < outputs_, "row ", row, " of a table of ", outputs_);
        }
        ov::Shape shape = inputs[0].get_shape();
        shape.push_back(columns_);
        results[0].set_shape(shape);
        if (!rows.empty()) unpack_rows(matrix, rows.data(), static_cast<int64_t>(rows.size()), results[0].data<float>());
        return true;
    }
};

}  // namespace dragoman

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<dragoman::ProductOperation>>(),
    std::make_shared<ov::OpExtension<dragoman::RowsOperation>>(),
}));
