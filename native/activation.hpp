// Activations of gated MLPs, over whatever an instruction set has as floats: the same operations in the same order everywhere.
//
// Sources: exp by Cody and Waite's reduction and a polynomial (errors below 2e-7 of the value); erf, Abramowitz and Stegun,
// 7.1.26 (below 2e-7); GELU (arXiv:1606.08415); SiLU (arXiv:1702.03118).
#pragma once

#include "product.hpp"

namespace dragoman {

// e^x; 0 and infinity are never reached, but their neighbourhood.
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt exponential(typename Isa::Flt x) {
    using Flt = typename Isa::Flt;
    x = Isa::most(Isa::least(x, Isa::broadcast(88.0f)), Isa::broadcast(-87.0f));
    const auto power = Isa::nearest(Isa::mul(x, Isa::broadcast(1.44269504f)));
    const Flt whole = Isa::to_floats(power);
    Flt rest = Isa::fma(whole, Isa::broadcast(-0.693359375f), x);
    rest = Isa::fma(whole, Isa::broadcast(2.12194440e-4f), rest);
    Flt sum = Isa::broadcast(1.9875691500e-4f);
    for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = Isa::fma(sum, rest, Isa::broadcast(factor));
    sum = Isa::fma(Isa::mul(sum, rest), rest, rest);
    return Isa::times_power(Isa::add(sum, Isa::broadcast(1.0f)), power);
}

// 1 / (1 + e^-x).
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt sigmoid(typename Isa::Flt x) {
    const auto one = Isa::broadcast(1.0f);
    return Isa::div(one, Isa::add(one, exponential<Isa>(Isa::mul(x, Isa::broadcast(-1.0f)))));
}

// (1 + erf(x / sqrt(2))) / 2.
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt normal(typename Isa::Flt x) {
    using Flt = typename Isa::Flt;
    const Flt one = Isa::broadcast(1.0f), z = Isa::mul(Isa::absolute(x), Isa::broadcast(0.70710678f));
    const Flt t = Isa::div(one, Isa::fma(z, Isa::broadcast(0.3275911f), one));
    Flt sum = Isa::broadcast(1.061405429f);
    for (float factor : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
        sum = Isa::fma(sum, t, Isa::broadcast(factor));
    // half of what lies beyond |x| on one side
    const Flt tail = Isa::mul(Isa::mul(Isa::mul(sum, t), exponential<Isa>(Isa::mul(Isa::mul(z, z), Isa::broadcast(-1.0f)))),
                              Isa::broadcast(0.5f));
    return Isa::where_negative(x, tail, Isa::add(one, Isa::mul(tail, Isa::broadcast(-1.0f))));
}

template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt activated(Activation activation, typename Isa::Flt x) {
    using Flt = typename Isa::Flt;
    const Flt positive = Isa::most(x, Isa::broadcast(0.0f));
    switch (activation) {
        case Activation::silu: return Isa::mul(x, sigmoid<Isa>(x));
        case Activation::quick_gelu: return Isa::mul(x, sigmoid<Isa>(Isa::mul(x, Isa::broadcast(1.702f))));
        case Activation::relu: return positive;
        case Activation::relu2: return Isa::mul(positive, positive);
        case Activation::gelu: return Isa::mul(x, normal<Isa>(x));
        default: {  // gelu_tanh: (1 + tanh(u)) / 2 is the sigmoid of 2 u
            const Flt cube = Isa::mul(Isa::mul(x, x), x);
            const Flt inner = Isa::fma(cube, Isa::broadcast(0.044715f), x);
            return Isa::mul(x, sigmoid<Isa>(Isa::mul(inner, Isa::broadcast(1.5957691216f))));
        }
    }
}

// activation(gate) * up.
template <class Isa>
DRAGOMAN_INLINE typename Isa::Flt gated(const Gating& how, typename Isa::Flt gate, typename Isa::Flt up) {
    using Flt = typename Isa::Flt;
    if (how.activation != Activation::bounded_swiglu) return Isa::mul(activated<Isa>(how.activation, gate), up);
    const Flt limit = Isa::broadcast(how.limit);
    gate = Isa::least(limit, gate);  // the bound comes first, so that what is no number stays none
    up = Isa::most(Isa::broadcast(-how.limit), Isa::least(limit, up));
    const Flt factor = sigmoid<Isa>(Isa::mul(gate, Isa::broadcast(how.gain)));
    return Isa::mul(Isa::mul(gate, factor), Isa::add(up, Isa::broadcast(1.0f)));
}

template <class Isa>
void activate_with(const Gating& how, float* gate, const float* up, int64_t count) {
    int64_t i = 0;
    for (; i + Isa::lanes <= count; i += Isa::lanes)
        Isa::store(gate + i, gated<Isa>(how, Isa::load(gate + i), Isa::load(up + i)));
    if (i == count) return;
    float rest[Isa::lanes] = {}, with[Isa::lanes] = {};
    for (int64_t j = i; j < count; ++j) rest[j - i] = gate[j], with[j - i] = up[j];
    Isa::store(rest, gated<Isa>(how, Isa::load(rest), Isa::load(with)));
    for (int64_t j = i; j < count; ++j) gate[j] = rest[j - i];
}

}  // namespace dragoman
