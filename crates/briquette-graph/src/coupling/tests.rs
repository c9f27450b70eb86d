//! Graphs built by hand: each rule, with 2, 3 and 4 heads where heads matter.

use super::{CouplingGroup, coupling_groups};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ConvSettings, ElementFunction, Primitive, Rotary, RotaryScaling, Routing};
use briquette_core::DType;

const WIDTH: usize = 6;
const TOKENS: usize = 5;
const ROUTING: Routing = Routing { top_k: 2, is_normalized: true };

fn built(build: impl FnOnce(&mut GraphBuilder) -> ValueId) -> Graph {
    let headers = Headers::new(&[], None);
    let mut to = GraphBuilder::new("test", &headers);
    let output = build(&mut to);
    to.finish(&[output])
}

/// The groups as text: `units: weight/axis·width`.
fn shown(graph: &Graph) -> Vec<String> {
    let groups = coupling_groups(graph, &graph.lower().unwrap()).unwrap();
    groups.iter().map(|group| text(graph, group)).collect()
}

fn text(graph: &Graph, group: &CouplingGroup) -> String {
    let place =
        |place: &super::UnitPlace| format!("{}/{}·{}", graph.weights[place.weight.0].name, place.axis, place.width);
    format!("{}: {}", group.units.len(), group.places.iter().map(place).collect::<Vec<_>>().join(" "))
}

fn linear(to: &mut GraphBuilder, name: &str, [n_in, n_out]: [usize; 2], x: ValueId) -> ValueId {
    to.declare(&format!("{name}.weight"), DType::F32, &[n_out, n_in]);
    to.linear(name, x).unwrap()
}

fn conv(to: &mut GraphBuilder, name: &str, shape: [usize; 2], groups: usize, x: ValueId) -> ValueId {
    to.declare(&format!("{name}.weight"), DType::F32, &[shape[0], shape[1], 3, 3]);
    to.conv(name, x, ConvSettings::square(1, 1).with_groups(groups)).unwrap()
}

fn reshape(to: &mut GraphBuilder, x: ValueId, shape: &[usize]) -> ValueId {
    to.node("reshape", Primitive::Reshape(shape.to_vec()), &[x.into()])
}

fn transpose(to: &mut GraphBuilder, x: ValueId, permutation: &[usize]) -> ValueId {
    to.node("transpose", Primitive::Transpose(permutation.to_vec()), &[x.into()])
}

fn slice(to: &mut GraphBuilder, x: ValueId, axis: usize, start: usize, len: usize) -> ValueId {
    to.node("slice", Primitive::Slice { axis, start, len }, &[x.into()])
}

/// `softmax(q · kᵀ) · v` of `[batch, heads, tokens, width]`, joined to `[batch, tokens, heads · width]`.
fn attend(to: &mut GraphBuilder, [q, k, v]: [ValueId; 3], bias: Option<ValueId>, shape: [usize; 3]) -> ValueId {
    let mut scores = to.node("scores", Primitive::MatMul { transpose_b: true }, &[q.into(), k.into()]);
    if let Some(bias) = bias {
        scores = to.add("bias", scores, bias);
    }
    let shares = to.node("softmax", Primitive::Softmax { axis: 3 }, &[scores.into()]);
    let mixed = to.node("mixed", Primitive::MatMul { transpose_b: false }, &[shares.into(), v.into()]);
    let mixed = transpose(to, mixed, &[0, 2, 1, 3]);
    reshape(to, mixed, &shape)
}

#[test]
fn heads_are_units_whatever_their_number() {
    for heads in [2, 3, 4] {
        let graph = built(|to| {
            let x = to.input("x", &[1, TOKENS, WIDTH]);
            let [q, k, v] = ["q", "k", "v"].map(|name| linear(to, name, [WIDTH, heads * 8], x));
            let mixed = to.node("a", Composite::Attention(Attention::full(heads)), &[q.into(), k.into(), v.into()]);
            linear(to, "o", [heads * 8, WIDTH], mixed)
        });
        let expected = format!("{heads}: q.weight/0·8 k.weight/0·8 v.weight/0·8 o.weight/1·8");
        assert_eq!(shown(&graph), [expected]);
    }
}

#[test]
fn heads_of_queries_that_share_keys_are_removed_together() {
    for kv_heads in [2, 3, 4] {
        let heads = 3 * kv_heads;
        let graph = built(|to| {
            let x = to.input("x", &[1, TOKENS, WIDTH]);
            let q = linear(to, "q", [WIDTH, heads * 4], x);
            let [k, v] = ["k", "v"].map(|name| linear(to, name, [WIDTH, kv_heads * 4], x));
            let rotary = Some(Rotary { theta: 1e4, scaling: RotaryScaling::None, width: None });
            let settings = Attention { kv_heads, causal: true, rotary, ..Attention::full(heads) };
            let mixed = to.node("a", Composite::Attention(settings), &[q.into(), k.into(), v.into()]);
            linear(to, "o", [heads * 4, WIDTH], mixed)
        });
        let expected = format!("{kv_heads}: q.weight/0·12 k.weight/0·4 v.weight/0·4 o.weight/1·12");
        assert_eq!(shown(&graph), [expected]);
    }
}

/// Queries, keys and values of one matrix `[3 · heads · width, in]`, in the order of GPT-2, of ViT and of GPT-NeoX.
fn fused(to: &mut GraphBuilder, order: &str, heads: usize) -> ValueId {
    let (x, all) = (to.input("x", &[1, TOKENS, WIDTH]), 3 * heads * 8);
    let qkv = linear(to, "qkv", [WIDTH, all], x);
    let parts: [ValueId; 3] = match order {
        "gpt2" => {
            let parts = to.nodes("split", Primitive::Split { axis: 2, sizes: vec![heads * 8; 3] }, &[qkv.into()], 3);
            [0, 1, 2].map(|part| {
                let part = reshape(to, parts[part], &[1, TOKENS, heads, 8]);
                transpose(to, part, &[0, 2, 1, 3])
            })
        }
        "vit" => {
            let cut = reshape(to, qkv, &[1, TOKENS, 3, heads, 8]);
            let cut = transpose(to, cut, &[2, 0, 3, 1, 4]);
            [0, 1, 2].map(|part| {
                let part = slice(to, cut, 0, part, 1);
                reshape(to, part, &[1, heads, TOKENS, 8])
            })
        }
        _ => {
            let cut = reshape(to, qkv, &[1, TOKENS, heads, 24]);
            let cut = transpose(to, cut, &[0, 2, 1, 3]);
            [0, 1, 2].map(|part| slice(to, cut, 3, 8 * part, 8))
        }
    };
    let mixed = attend(to, parts, None, [1, TOKENS, heads * 8]);
    linear(to, "o", [heads * 8, WIDTH], mixed)
}

#[test]
fn fused_queries_keys_and_values_are_cut_by_head_in_any_order() {
    for heads in [2, 3, 4] {
        for order in ["gpt2", "vit", "neox"] {
            let graph = built(|to| fused(to, order, heads));
            assert_eq!(shown(&graph), [format!("{heads}: qkv.weight/0·24 o.weight/1·8")], "{order}");
            let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
            let second = &groups[0].units[1][0];
            let expected: Vec<u32> = match order {
                "neox" => (24..48).collect(),
                _ => (0..3).flat_map(|part| (0..8).map(move |at| (part * heads as u32 + 1) * 8 + at)).collect(),
            };
            assert_eq!(*second, expected, "{order}");
        }
    }
}

#[test]
fn window_attention_keeps_space_and_cuts_heads_with_their_bias_table() {
    for heads in [2, 3, 4] {
        let (side, window, width) = (4, 2, heads * 4);
        let graph = built(|to| {
            let x = to.input("x", &[1, side, side, WIDTH]);
            let x = linear(to, "in", [WIDTH, width], x);
            let n = side / window;
            let cut = reshape(to, x, &[1, n, window, n, window, width]);
            let cut = transpose(to, cut, &[0, 1, 3, 2, 4, 5]);
            let cut = reshape(to, cut, &[n * n, window * window, width]);
            let parts = ["q", "k", "v"].map(|name| {
                let part = linear(to, name, [width, width], cut);
                let part = reshape(to, part, &[n * n, window * window, heads, 4]);
                transpose(to, part, &[0, 2, 1, 3])
            });
            let table = to.declare("table", DType::F32, &[9, heads]);
            let places = to.input("places", &[window * window * window * window]);
            let bias = to.node("gather", Primitive::Gather, &[table.into(), places.into()]);
            let bias = reshape(to, bias, &[window * window, window * window, heads]);
            let bias = transpose(to, bias, &[2, 0, 1]);
            let mixed = attend(to, parts, Some(bias), [n * n, window * window, width]);
            let mixed = linear(to, "o", [width, width], mixed);
            let back = reshape(to, mixed, &[1, n, n, window, window, width]);
            let back = transpose(to, back, &[0, 1, 3, 2, 4, 5]);
            let back = reshape(to, back, &[1, side, side, width]);
            let sum = to.add("residual", back, x);
            linear(to, "out", [width, WIDTH], sum)
        });
        let n = 4 * heads;
        let expected = [
            format!("{n}: in.weight/0·1 q.weight/1·1 k.weight/1·1 v.weight/1·1 o.weight/0·1 out.weight/1·1"),
            format!("{heads}: q.weight/0·4 k.weight/0·4 v.weight/0·4 table/1·1 o.weight/1·4"),
        ];
        assert_eq!(shown(&graph), expected);
    }
}

#[test]
fn experts_go_with_their_router_and_keep_a_free_inner_width() {
    let graph = built(|to| {
        let x = to.input("x", &[1, TOKENS, WIDTH]);
        let x = linear(to, "in", [WIDTH, 8], x);
        let logits = linear(to, "router", [8, 4], x);
        let [gate, up] = ["gate", "up"].map(|name| to.declare(name, DType::F32, &[4, 16, 8]));
        let down = to.declare("down", DType::F32, &[4, 8, 16]);
        let op = Composite::Experts { routing: ROUTING, function: ElementFunction::Silu };
        let y = to.node("experts", op, &[x.into(), logits.into(), gate.into(), up.into(), down.into()]);
        let sum = to.add("residual", x, y);
        linear(to, "out", [8, WIDTH], sum)
    });
    let expected = [
        "8: in.weight/0·1 router.weight/1·1 gate/2·1 up/2·1 down/1·1 out.weight/1·1",
        "4: router.weight/0·1 gate/0·1 up/0·1 down/0·1",
        "16: gate/1·1 up/1·1 down/2·1",
    ];
    assert_eq!(shown(&graph), expected);
}

#[test]
fn experts_of_their_own_tensors_stay_and_lose_inner_widths() {
    let graph = built(|to| {
        let x = to.input("x", &[1, TOKENS, WIDTH]);
        let logits = linear(to, "router", [WIDTH, 2], x);
        let mut inputs = vec![x.into(), logits.into()];
        for (expert, inner) in [("0", 7), ("1", 9)] {
            for (part, shape) in [("gate", [inner, WIDTH]), ("up", [inner, WIDTH]), ("down", [WIDTH, inner])] {
                inputs.push(to.declare(&format!("{expert}.{part}"), DType::F32, &shape).into());
            }
        }
        to.node("experts", Composite::SeparateExperts { routing: ROUTING, function: ElementFunction::Silu }, &inputs)
    });
    assert_eq!(shown(&graph), ["7: 0.gate/0·1 0.up/0·1 0.down/1·1", "9: 1.gate/0·1 1.up/0·1 1.down/1·1"]);
}

#[test]
fn heads_of_a_fused_layer_with_norms_and_partly_turned_are_removed_together() {
    for heads in 2..=4 {
        let graph = built(|to| {
            let (width, n) = (4, heads * 4);
            let x = to.input("x", &[1, TOKENS, WIDTH]);
            let fused = linear(to, "qkv", [WIDTH, 3 * n], x);
            let parts = to.nodes("split", Composite::SplitHeads { heads, parts: 3 }, &[fused.into()], 3);
            let norm = to.declare("norm", DType::F32, &[width]);
            let op = Composite::HeadNorm { heads, eps: 1e-6, offset: 0.0 };
            let q = to.node("q", op, &[parts[0].into(), norm.into()]);
            let rotary = Some(Rotary { theta: 1e4, scaling: RotaryScaling::None, width: Some(2) });
            let op = Composite::Attention(Attention { rotary, soft_cap: Some(5.0), ..Attention::full(heads) });
            let mixed = to.node("attention", op, &[q.into(), parts[1].into(), parts[2].into()]);
            linear(to, "out", [n, WIDTH], mixed)
        });
        assert_eq!(shown(&graph), [format!("{heads}: qkv.weight/0·12 out.weight/1·4")]);
    }
}

#[test]
fn patches_keep_their_tokens_and_padding_keeps_channels_free() {
    let graph = built(|to| {
        let x = to.input("x", &[1, 3, 6, 6]);
        let pad = Primitive::Pad { before: vec![0; 4], after: vec![0, 0, 2, 2] };
        let x = conv(to, "a", [8, 3], 1, x);
        let x = to.node("pad", pad, &[x.into()]);
        let x = conv(to, "b", [10, 8], 1, x);
        let x = to.node("tokens", Composite::SpaceToTokens, &[x.into()]);
        let token = to.declare("token", DType::F32, &[1, 1, 10]);
        let x = to.node("all", Composite::PrependTokens, &[x.into(), token.into()]);
        let x = to.node("first", Composite::TakeToken(0), &[x.into()]);
        let x = to.node("half", Primitive::Scale(0.5), &[x.into()]);
        linear(to, "c", [10, 4], x)
    });
    assert_eq!(shown(&graph), ["8: a.weight/0·1 b.weight/1·1", "10: b.weight/0·1 token/2·1 c.weight/1·1"]);
}

#[test]
fn grouped_convolutions_lose_whole_groups_and_depthwise_ones_channels() {
    let graph = |groups: usize, multiple: usize| {
        built(|to| {
            let x = to.input("x", &[1, 3, 8, 8]);
            let x = conv(to, "a", [12, 3], 1, x);
            let x = conv(to, "b", [12 * multiple, 12 / groups], groups, x);
            conv(to, "c", [5, 12 * multiple], 1, x)
        })
    };
    assert_eq!(shown(&graph(1, 1)), ["12: a.weight/0·1 b.weight/1·1", "12: b.weight/0·1 c.weight/1·1"]);
    assert_eq!(shown(&graph(12, 1)), ["12: a.weight/0·1 b.weight/0·1 c.weight/1·1"]);
    assert_eq!(shown(&graph(12, 2)), ["12: a.weight/0·1 b.weight/0·2 c.weight/1·2"]);
    assert_eq!(shown(&graph(4, 2)), ["4: a.weight/0·3 b.weight/0·6 c.weight/1·6"]);
}

#[test]
fn transposed_convolutions_count_outputs_in_their_second_axis() {
    for (groups, expected) in [
        (1, vec!["8: a.weight/0·1 t.weight/0·1", "6: t.weight/1·1 t.bias/0·1 c.weight/1·1"]),
        (2, vec!["2: a.weight/0·4 t.weight/0·4 t.bias/0·3 c.weight/1·3"]),
    ] {
        let graph = built(|to| {
            let x = to.input("x", &[1, 3, 8, 8]);
            let x = conv(to, "a", [8, 3], 1, x);
            to.declare("t.weight", DType::F32, &[8, 6 / groups, 2, 2]);
            to.declare("t.bias", DType::F32, &[6]);
            let settings = ConvSettings { transposed: true, ..ConvSettings::square(2, 0).with_groups(groups) };
            let x = to.conv("t", x, settings).unwrap();
            conv(to, "c", [5, 6], 1, x)
        });
        assert_eq!(shown(&graph), expected);
    }
}

#[test]
fn a_channel_shuffle_ties_the_same_place_of_each_group() {
    for groups in [2, 3, 4] {
        let n = 5 * groups;
        let graph = built(|to| {
            let x = to.input("x", &[1, 3, 8, 8]);
            let x = conv(to, "a", [n, 3], 1, x);
            let x = reshape(to, x, &[1, groups, 5, 8, 8]);
            let x = transpose(to, x, &[0, 2, 1, 3, 4]);
            let x = reshape(to, x, &[1, n, 8, 8]);
            conv(to, "b", [4, n], 1, x)
        });
        assert_eq!(shown(&graph), [format!("5: a.weight/0·{groups} b.weight/1·{groups}")]);
        let groups_found = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
        let expected: Vec<u32> = (0..groups as u32).map(|group| group * 5).collect();
        assert_eq!(groups_found[0].units[0][0], expected);
        assert_eq!(groups_found[0].units[0][1], (0..groups as u32).collect::<Vec<_>>());
    }
}

#[test]
fn group_norms_lose_whole_groups() {
    let graph = built(|to| {
        let x = to.input("x", &[1, 3, 8, 8]);
        let x = conv(to, "a", [12, 3], 1, x);
        let weights = ["n.weight", "n.bias"].map(|name| to.declare(name, DType::F32, &[12]));
        let op = Composite::GroupNorm { groups: 4, eps: 1e-5 };
        let x = to.node("n", op, &[x.into(), weights[0].into(), weights[1].into()]);
        conv(to, "b", [5, 12], 1, x)
    });
    assert_eq!(shown(&graph), ["4: a.weight/0·3 n.weight/0·3 n.bias/0·3 b.weight/1·3"]);
}

#[test]
fn joined_channels_keep_their_own_groups_and_sums_unite_them() {
    let graph = built(|to| {
        let x = to.input("x", &[1, 3, 8, 8]);
        let (a, b) = (conv(to, "a", [4, 3], 1, x), conv(to, "b", [6, 3], 1, x));
        let joined = to.node("concat", Primitive::Concat { axis: 1 }, &[a.into(), b.into()]);
        let c = conv(to, "c", [4, 10], 1, joined);
        let sum = to.add("residual", a, c);
        conv(to, "d", [5, 4], 1, sum)
    });
    assert_eq!(
        shown(&graph),
        ["4: a.weight/0·1 c.weight/0·1 c.weight/1·1 d.weight/1·1", "6: b.weight/0·1 c.weight/1·1"]
    );
}

#[test]
fn flattened_channels_take_their_pixels_with_them() {
    let graph = built(|to| {
        let x = to.input("x", &[2, 3, 4, 4]);
        let x = conv(to, "a", [6, 3], 1, x);
        let x = reshape(to, x, &[2, 96]);
        linear(to, "fc", [96, 5], x)
    });
    assert_eq!(shown(&graph), ["6: a.weight/0·1 fc.weight/1·16"]);
}

#[test]
fn two_halves_of_one_matrix_are_cut_together() {
    let graph = built(|to| {
        let x = to.input("x", &[1, TOKENS, WIDTH]);
        let both = linear(to, "gate_up", [WIDTH, 16], x);
        let halves = to.nodes("halves", Primitive::Split { axis: 2, sizes: vec![8; 2] }, &[both.into()], 2);
        let inner = to.node("gate", Composite::Gate(ElementFunction::Silu), &[halves[0].into(), halves[1].into()]);
        linear(to, "down", [8, WIDTH], inner)
    });
    assert_eq!(shown(&graph), ["8: gate_up.weight/0·2 down.weight/1·1"]);
}

#[test]
fn an_operation_without_a_rule_fixes_its_axes() {
    let graph = |op: Primitive| {
        built(|to| {
            let x = to.input("x", &[1, WIDTH]);
            let x = linear(to, "a", [WIDTH, 8], x);
            let x = to.node("op", op, &[x.into()]);
            linear(to, "b", [8, WIDTH], x)
        })
    };
    let unknown = Primitive::Unknown { name: "Sort".into(), shapes: vec![vec![1, 8]] };
    assert!(shown(&graph(unknown)).is_empty());
    assert!(shown(&graph(Primitive::Softmax { axis: 1 })).is_empty());
    assert_eq!(shown(&graph(Primitive::Elementwise(ElementFunction::Relu))), ["8: a.weight/0·1 b.weight/1·1"]);
}

#[test]
fn a_tied_table_ties_the_width_and_keeps_its_rows() {
    let graph = built(|to| {
        let ids = to.input("ids", &[1, TOKENS]);
        to.declare("table.weight", DType::F32, &[20, 8]);
        let x = to.embedding("table", ids).unwrap();
        let x = linear(to, "a", [8, 8], x);
        let table = to.weight("table.weight").unwrap();
        to.node("head", Composite::Linear, &[x.into(), table.into()])
    });
    assert_eq!(shown(&graph), ["8: table.weight/1·1 a.weight/0·1 a.weight/1·1"]);
}
