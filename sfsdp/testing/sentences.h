// SPDX-License-Identifier: BSD-3-Clause
// A step over sentences, for tests of what cuts the sequence.
#pragma once

namespace sfsdp::testing {

// Causal attention over projections of looked up tokens, positions that are added, and the mean loss of all tokens.
inline constexpr const char* kSentences = R"(
  graph mesh [] view global
    %e = param name=tok.weight : f32[5, 4] at tok.weight
    %p = param name=pos : f32[8, 4] at pos
    %w = param name=wk.weight : f32[4, 4] at wk.weight
    %o = param name=head.weight : f32[5, 4] at head.weight
    %ids = input name=ids : i64[2, 8]
    %t = input name=t : i64[2, 8]
  fwd:
    %x.e = embedding %e, %ids : f32[2, 8, 4] at tok
    %x = aten.add.Tensor %x.e, %p : f32[2, 8, 4]
    %k.w = linear %x, %w : f32[2, 8, 4] at wk
    %k.v = aten.view %k.w size=[2, 8, 2, 2] : f32[2, 8, 2, 2]
    %k = aten.transpose.int %k.v dim0=1 dim1=2 : f32[2, 2, 8, 2]{32, 2, 4, 1}
    %q.v = aten.view %x size=[2, 8, 2, 2] : f32[2, 8, 2, 2]
    %q = aten.transpose.int %q.v dim0=1 dim1=2 : f32[2, 2, 8, 2]{32, 2, 4, 1}
    %a, %lse = sdpa %q, %k, %k is_causal=true : f32[2, 2, 8, 2]{32, 2, 4, 1}, f32[2, 2, 8]{16, 1, 2}
    %a.t = aten.transpose.int %a dim0=1 dim1=2 : f32[2, 8, 2, 2]
    %h = aten.view %a.t size=[2, 8, 4] : f32[2, 8, 4]
    %y = linear %h, %o : f32[2, 8, 5] at head
    %rows = aten.view %y size=[16, 5] : f32[16, 5]
    %targets = aten.view %t size=[16] : i64[16]
  loss:
    %loss, %n, %l = cross_entropy %rows, %targets ignore_index=1 : f32[], f32[], f32[16]
  bwd:
    %one = full value=1.0 : f32[]
    %drows = cross_entropy_backward %one, %rows, %targets, %n, %l ignore_index=1 bwd_of=%loss : f32[16, 5]
    %dy = aten.view %drows size=[2, 8, 5] : f32[2, 8, 5]
    %do = linear_dw %dy, %h bwd_of=%y : f32[5, 4] at head
    %dh = linear_dx %dy, %o bwd_of=%y : f32[2, 8, 4] at head
    %dh.v = aten.view %dh size=[2, 8, 2, 2] : f32[2, 8, 2, 2]
    %da = aten.transpose.int %dh.v dim0=1 dim1=2 : f32[2, 2, 8, 2]{32, 2, 4, 1}
    %dq, %dk, %dv = sdpa_backward %da, %q, %k, %k, %a, %lse is_causal=true bwd_of=%a : f32[2, 2, 8, 2]{32, 2, 4, 1}, f32[2, 2, 8, 2]{32, 2, 4, 1}, f32[2, 2, 8, 2]{32, 2, 4, 1}
    %dkv = aten.add.Tensor %dk, %dv : f32[2, 2, 8, 2]{32, 2, 4, 1}
    %dk.t = aten.transpose.int %dkv dim0=1 dim1=2 : f32[2, 8, 2, 2]
    %dk.w = aten.view %dk.t size=[2, 8, 4] : f32[2, 8, 4]
    %dw = linear_dw %dk.w, %x bwd_of=%k.w : f32[4, 4] at wk
    %dx.k = linear_dx %dk.w, %w bwd_of=%k.w : f32[2, 8, 4] at wk
    %dq.t = aten.transpose.int %dq dim0=1 dim1=2 : f32[2, 8, 2, 2]
    %dx.q = aten.view %dq.t size=[2, 8, 4] : f32[2, 8, 4]
    %dx = aten.add.Tensor %dx.q, %dx.k : f32[2, 8, 4]
    %dp = aten.sum.dim_IntList %dx dim=[0] : f32[8, 4]
    %de = embedding_backward %dx, %ids num_weights=5 padding_idx=-1 bwd_of=%x.e : f32[5, 4] at tok
    %e.grad = gradient %de param=tok.weight : f32[5, 4]
    %p.grad = gradient %dp param=pos : f32[8, 4]
    %w.grad = gradient %dw param=wk.weight : f32[4, 4]
    %o.grad = gradient %do param=head.weight : f32[5, 4]
    return %loss
    carry %e = %e.grad
    carry %p = %p.grad
    carry %w = %w.grad
    carry %o = %o.grad
)";

}  // namespace sfsdp::testing
