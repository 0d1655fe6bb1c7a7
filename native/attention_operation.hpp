// The attribute by which operations tell how they attend. Included by the files of operations.
#pragma once

#include <string>

#include "attention.hpp"

namespace dragoman {

class Vectors;

// The attribute "how": "heads kv_heads head value scale cap window type has_sinks has_slopes has_types".
struct AttentionHow {
    std::string text;
    Attention attention{};
    bool has_sinks = false, has_slopes = false, has_types = false;

    Attention with(Vectors& numbers) const;  // sinks, then slopes
};
AttentionHow read_attention(const std::string& text);

}  // namespace dragoman
