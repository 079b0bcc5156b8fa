// SPDX-License-Identifier: BSD-3-Clause
// Decompositions, one file per family; decompose.cc has the table.
#pragma once

#include <vector>

#include "sfsdp/ir/canonical/body.h"
#include "sfsdp/ir/canonical/decompose.h"

namespace sfsdp::ir {

std::vector<Term> decompose_rms_norm(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_rms_norm_backward(const CanonicalCall& call, Body& body);

std::vector<Term> decompose_rope(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_rope_inverse(const CanonicalCall& call, Body& body);

std::vector<Term> decompose_embedding(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_embedding_backward(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_layer_norm(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_layer_norm_backward(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_sdpa(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_sdpa_backward(const CanonicalCall& call, Body& body);

std::vector<Term> decompose_cross_entropy(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_cross_entropy_backward(const CanonicalCall& call, Body& body);
Type lse_of(const CanonicalCall& call);

std::vector<Term> decompose_dropout(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_dropout_backward(const CanonicalCall& call, Body& body);
Type dropout_state(const CanonicalCall& call);

std::vector<Term> decompose_linear(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_linear_dx(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_linear_dw(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_matmul(const CanonicalCall& call, Body& body);

std::vector<Term> decompose_joined_linear(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_joined_linear_dx(const CanonicalCall& call, Body& body);
std::vector<Term> decompose_joined_linear_dw(const CanonicalCall& call, Body& body);

}  // namespace sfsdp::ir
