// The graph's operations on what lies before and behind attention in a layer.
//
// Does: check inputs and attributes, and hand pointers to the kernels. Does not: compute. Each has an attribute "how" of numbers with
// spaces between, and an input "numbers" f32 [n] with all vectors behind each other in the order in which they are named here.
#include <locale>
#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "layer.hpp"
#include "layer_words.hpp"
#include "on_matrices.hpp"

// Of libopenvino, whose headers of transformations are not in the package.
namespace ov {
void disable_conversion(const std::shared_ptr<Node>& node, const element::Type& to);
bool is_conversion_disabled(const std::shared_ptr<const Node>& node, const element::Type& to);
}  // namespace ov

namespace dragoman {

void keep_f32(const std::shared_ptr<ov::Node>& node) {
    if (node->get_input_size() == 0 || ov::is_conversion_disabled(node, ov::element::f16)) return;
    ov::disable_conversion(node, ov::element::f16);
    for (const ov::Output<ov::Node>& input : node->input_values()) keep_f32(input.get_node_shared_ptr());
}

namespace {

const ParallelFor kOnThreads = on_threads;

}  // namespace

// x [T, 1, columns] f32, numbers (weight of the norm; of each product its bias and its norm's weight), and where
// something is turned cos and sin f32 [T, ..., turned]: of each product [T, outputs] f32.
class NormedProductsOperation : public OnMatrices {
public:
    OPENVINO_OP("NormedProducts", "dragoman");
    NormedProductsOperation() = default;
    NormedProductsOperation(const ov::OutputVector& inputs, const NormedProductsOperation& other)
        : OnMatrices(inputs, other), how_(other.how_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        how_.visit(visitor);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        const size_t count = matrices().size();
        const int64_t turned = how_->turned();
        check_counts(how_->products.size() == count && get_input_size() == (turned ? 4 : 2));
        NODE_VALIDATION_CHECK(this, get_input_element_type(1) == ov::element::f32, "numbers are ", get_input_element_type(1),
                              ", not f32");
        for (size_t i = 2; i < get_input_size(); ++i) {
            keep_f32(get_input_node_shared_ptr(i));
            const ov::PartialShape& shape = get_input_partial_shape(i);
            NODE_VALIDATION_CHECK(this,
                                  get_input_element_type(i) == ov::element::f32 && shape.rank().is_static() && shape.size() > 0 &&
                                      shape[shape.size() - 1].compatible(turned),
                                  "angles are ", get_input_element_type(i), shape, ", and ", turned, " values are turned");
        }
        set_output_size(count);
        const std::string fault = how_->fault(matrices().data(), count);
        NODE_VALIDATION_CHECK(this, fault.empty(), fault);
        for (size_t i = 0; i < count; ++i) {
            const Matrix& matrix = matrices()[i];
            const ov::PartialShape results = shape_of_results(matrix, matrix.outputs);
            NODE_VALIDATION_CHECK(this, results.size() == 3 && results[1].compatible(1), "rows are ", get_input_partial_shape(0));
            set_output_type(i, ov::element::f32, ov::PartialShape{results[0], matrix.outputs});
        }
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<NormedProductsOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const size_t count = matrices().size();
        Vectors numbers(inputs[1]);
        std::vector<Product> all(count);
        std::vector<Heads> heads(count);
        const Norm norm = how_->with(numbers, matrices().data(), all.data(), heads.data());
        for (size_t i = 0; i < count; ++i) {
            results[i].set_shape({static_cast<size_t>(rows.count), static_cast<size_t>(all[i].stride)});
            if (rows.count) all[i].y = results[i].data<float>();
        }
        numbers.finish();
        Angles angles{};
        if (const int64_t turned = how_->turned(); turned && rows.count) {
            const ov::Tensor &cos = inputs[2], &sin = inputs[3];
            const size_t size = static_cast<size_t>(rows.count * turned);
            OPENVINO_ASSERT(cos.get_size() == size && sin.get_size() == size, "angles are ", cos.get_shape(), " and ",
                            sin.get_shape(), ", not of ", rows.count, " rows");
            angles = {cos.data<const float>(), sin.data<const float>()};
        }
        normed_products(norm, all.data(), heads.data(), static_cast<int>(count), angles, rows, kOnThreads);
        return true;
    }

private:
    How<Before> how_;
};

// Matrices: output, gate, up and down. x [..., columns] f32, residual f32 [..., hidden] of as many rows, numbers (biases of output, gate, up and down;
// weights of the output's norm, of the norm before the MLP and of the one behind it): [..., hidden] f32.
class OutputAndMlpOperation : public OnMatrices {
public:
    OPENVINO_OP("OutputAndMlp", "dragoman");
    OutputAndMlpOperation() = default;
    OutputAndMlpOperation(const ov::OutputVector& inputs, const OutputAndMlpOperation& other)
        : OnMatrices(inputs, other), how_(other.how_), activation_(other.activation_) {}

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        how_.visit(visitor);
        visit_activation(visitor, activation_);
        return OnMatrices::visit_attributes(visitor);
    }

    void validate_and_infer_types() override {
        check_counts(matrices().size() == 4 && get_input_size() == 3);
        const Matrix& output = matrices()[0];
        const int64_t hidden = output.outputs;
        const std::string fault = how_->fault(matrices().data());
        NODE_VALIDATION_CHECK(this, fault.empty(), fault);
        for (size_t i : {1, 2})
            NODE_VALIDATION_CHECK(this, get_input_element_type(i) == ov::element::f32, "residual or numbers are ",
                                  get_input_element_type(i), ", not f32");
        shape_of_results(output, hidden);
        const ov::PartialShape& residual = get_input_partial_shape(1);
        NODE_VALIDATION_CHECK(
            this, residual.rank().is_static() && residual.size() > 0 && residual[residual.size() - 1].compatible(hidden),
            "the residual is ", residual, ", and a layer has ", hidden, " columns");
        set_output_type(0, ov::element::f32, residual);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<OutputAndMlpOperation>(inputs, *this);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool evaluate(ov::TensorVector& results, const ov::TensorVector& inputs) const override {
        const Input rows = rows_in(inputs[0]);
        const int64_t hidden = matrices()[0].outputs;
        const ov::Tensor& residual = inputs[1];
        OPENVINO_ASSERT(residual.get_size() == static_cast<size_t>(rows.count * hidden), "the residual is ", residual.get_shape(),
                        ", and ", rows.count, " rows have ", hidden, " columns");
        Vectors numbers(inputs[2]);
        const OutputAndMlp layer = how_->with(numbers, matrices().data(), activation_);
        numbers.finish();
        results[0].set_shape(residual.get_shape());
        if (rows.count) output_and_mlp(layer, rows, residual.data<const float>(), results[0].data<float>(), kOnThreads);
        return true;
    }

private:
    How<After> how_;
    NamedGating activation_;
};

std::shared_ptr<ov::Extension> normed_products_extension() {
    return std::make_shared<ov::OpExtension<NormedProductsOperation>>();
}

std::shared_ptr<ov::Extension> output_and_mlp_extension() { return std::make_shared<ov::OpExtension<OutputAndMlpOperation>>(); }

}  // namespace dragoman
