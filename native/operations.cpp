// The graph's operations.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute. The CPU plugin calls `evaluate` on a
// thread of its own, once per inference. What is wrong with sizes is thrown where the graph is made, or else where it runs.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <string>
#include <vector>

#include "on_matrices.hpp"

namespace dragoman {
namespace {

const ParallelFor kOnThreads = on_threads;

}  // namespace

// x [..., columns] f32, then a bias [outputs] f32 of each matrix or of none: [..., outputs] f32 of each.
class ProductsOperation : public OnMatrices {
public:
    OPENVINO_OP("Products", "dragoman");
    using OnMatrices::OnMatrices;

    void validate_and_infer_types() override {
        const size_t count = matrices().size(), inputs = get_input_size();
        check_counts(inputs == 1 || inputs == 1 + count);
        set_output_size(count);
        for (size_t i = 0; i < count; ++i) {
            NODE_VALIDATION_CHECK(this, matrices()[i].columns == matrices()[0].columns, "matrices have unequal columns");
            if (inputs > 1) check_bias(1 + i, matrices()[i]);
            set_output_type(i, ov::element::f32, shape_of_results(matrices()[i], matrices()[i].outputs));
        }
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<ProductsOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const size_t count = matrices().size();
        std::vector<Product> all;
        for (size_t i = 0; i < count; ++i) {
            ov::Shape shape = inputs[0].get_shape();
            shape.back() = matrices()[i].outputs;
            results[i].set_shape(shape);
            all.push_back({matrices()[i], floats_or_null(inputs, 1 + i), nullptr, matrices()[i].outputs});
            if (rows.count) all.back().y = results[i].data<float>();
        }
        products(all.data(), static_cast<int>(count), rows, kOnThreads);
        return true;
    }
};

// x [..., columns] f32, then a bias of gate, up and down or none: [..., outputs of down] f32.
class GatedMlpOperation : public OnMatrices {
public:
    OPENVINO_OP("GatedMlp", "dragoman");
    GatedMlpOperation() = default;
    GatedMlpOperation(const ov::OutputVector& inputs, const GatedMlpOperation& other)
        : OnMatrices(inputs, other), gating_(other.gating_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visit_activation(visitor, gating_);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        check_counts(matrices().size() == 3 && (get_input_size() == 1 || get_input_size() == 4));
        const Matrix &gate = matrices()[0], &up = matrices()[1], &down = matrices()[2];
        NODE_VALIDATION_CHECK(this, gate.columns == up.columns && gate.outputs == up.outputs && down.columns == up.outputs,
                              "gate, up and down do not fit");
        for (size_t i = 1; i < get_input_size(); ++i) check_bias(i, matrices()[i - 1]);
        set_output_type(0, ov::element::f32, shape_of_results(gate, down.outputs));
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<GatedMlpOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const GatedMlp mlp = {matrices()[0],
                              matrices()[1],
                              matrices()[2],
                              floats_or_null(inputs, 1),
                              floats_or_null(inputs, 2),
                              floats_or_null(inputs, 3),
                              gating_};
        ov::Shape shape = inputs[0].get_shape();
        shape.back() = mlp.down.outputs;
        results[0].set_shape(shape);
        if (rows.count) gated_mlp(mlp, rows, results[0].data<float>(), mlp.down.outputs, kOnThreads);
        return true;
    }

private:
    NamedGating gating_;
};

// indices [...] of i32 or i64: those rows of the matrix, [..., columns] f32.
class RowsOperation : public OnMatrices {
public:
    OPENVINO_OP("Rows", "dragoman");
    using OnMatrices::OnMatrices;

    void validate_and_infer_types() override {
        check_counts(get_input_size() == 1 && matrices().size() == 1);
        const ov::element::Type& type = get_input_element_type(0);
        NODE_VALIDATION_CHECK(this, type == ov::element::i32 || type == ov::element::i64, "indices are ", type,
                              ", not i32 or i64");
        ov::PartialShape shape = get_input_partial_shape(0);
        NODE_VALIDATION_CHECK(this, shape.rank().is_static(), "the rank of the indices is unknown");
        shape.push_back(matrices()[0].columns);
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<RowsOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Matrix& matrix = matrices()[0];
        const size_t count = inputs[0].get_size();
        const bool is_wide = inputs[0].get_element_type() == ov::element::i64;
        ov::Shape shape = inputs[0].get_shape();
        shape.push_back(matrix.columns);
        results[0].set_shape(shape);
        for (size_t i = 0; i < count; ++i) {
            const int64_t row = is_wide ? inputs[0].data<const int64_t>()[i] : inputs[0].data<const int32_t>()[i];
            OPENVINO_ASSERT(row >= 0 && row < matrix.outputs, "row ", row, " of a table of ", matrix.outputs);
            unpack_rows(matrix, &row, 1, results[0].data<float>() + i * matrix.columns);
        }
        return true;
    }
};

}  // namespace dragoman

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<dragoman::ProductsOperation>>(),
    std::make_shared<ov::OpExtension<dragoman::GatedMlpOperation>>(),
    std::make_shared<ov::OpExtension<dragoman::RowsOperation>>(),
    dragoman::attention_extension(),
    dragoman::experts_extension(),
    dragoman::normed_products_extension(),
    dragoman::output_and_mlp_extension(),
    dragoman::layers_extension(),
    dragoman::recurrence_extension(),
}));
