//! Coupling groups of structures that families will need: transposed convolutions, repeated keys, separate experts.

#![allow(clippy::unwrap_used)]

mod net;

use briquette_core::DType;
use briquette_graph::coupling::coupling_groups;
use briquette_graph::op::{ConvSettings, ElementFunction};
use briquette_graph::{Graph, Primitive, ValueId};
use net::{Net, by_hand};

/// Units of each group with the name, the axis and the elements of each place.
fn shown(graph: &Graph) -> Vec<String> {
    let groups = coupling_groups(graph, &graph.lower().unwrap()).unwrap();
    let text = |group: &briquette_graph::coupling::CouplingGroup| {
        let places = group.places.iter().map(|place| {
            let name = graph.weights[place.weight.0].name.trim_end_matches(".weight");
            format!("{name}/{}x{}", place.axis, place.width)
        });
        format!("{}: {}", group.units.len(), places.collect::<Vec<_>>().join(" "))
    };
    groups.iter().map(text).collect()
}

fn transposed(net: &mut Net, x: ValueId, shape: &[usize], groups: usize) -> ValueId {
    let n_space = shape.len() - 2;
    let name = net.name();
    net.to.declare(&format!("{name}.weight"), DType::F32, shape);
    let settings = ConvSettings {
        stride: vec![2; n_space],
        padding: vec![0; n_space],
        dilation: vec![1; n_space],
        groups,
        transposed: true,
    };
    net.to.conv(&name, x, settings).unwrap()
}

#[test]
fn a_transposed_depthwise_convolution_loses_single_channels() {
    for groups in [2, 3, 4] {
        let graph = by_hand(|net| {
            let x = net.to.input("x", &[1, 3, 8, 8]);
            let x = net.conv(x, [3, groups], 3, 1, 1);
            let x = transposed(net, x, &[groups, 1, 2, 2], groups);
            net.conv(x, [groups, 5], 3, 1, 1)
        });
        assert_eq!(shown(&graph), [format!("{groups}: n1/0x1 n2/0x1 n3/1x1")]);
    }
}

#[test]
fn one_dimensional_transposed_convolutions_with_groups_lose_whole_groups() {
    let graph = by_hand(|net| {
        let x = net.to.input("x", &[1, 12, 9]);
        let x = transposed(net, x, &[12, 8, 2], 1);
        let x = transposed(net, x, &[8, 3, 2], 4);
        transposed(net, x, &[12, 5, 2], 1)
    });
    assert_eq!(shown(&graph), ["4: n1/1x2 n2/0x2 n3/0x3"]);
}

/// Attention whose keys and values are repeated, by broadcasting or by joining copies.
fn repeated_keys(kv_heads: usize, by_joining: bool) -> Graph {
    const TOKENS: usize = 5;
    let (n, head) = (3, 4);
    let heads = n * kv_heads;
    by_hand(|net| {
        let x = net.to.input("x", &[1, TOKENS, 6]);
        let q = net.linear(x, [6, heads * head], false);
        let q = net.reshape(q, &[1, TOKENS, heads, head]);
        let q = net.transpose(q, &[0, 2, 1, 3]);
        let [k, v] = [0, 1].map(|_| {
            let part = net.linear(x, [6, kv_heads * head], false);
            let part = net.reshape(part, &[1, TOKENS, kv_heads, head]);
            let part = net.transpose(part, &[0, 2, 1, 3]);
            let part = net.reshape(part, &[1, kv_heads, 1, TOKENS, head]);
            let repeated = match by_joining {
                true => net.to.node("copies", Primitive::Concat { axis: 2 }, &vec![part.into(); n]),
                false => net.to.node("expand", Primitive::Expand(vec![1, kv_heads, n, TOKENS, head]), &[part.into()]),
            };
            net.reshape(repeated, &[1, heads, TOKENS, head])
        });
        let scores = net.to.node("scores", Primitive::MatMul { transpose_b: true }, &[q.into(), k.into()]);
        let shares = net.to.node("softmax", Primitive::Softmax { axis: 3 }, &[scores.into()]);
        let mixed = net.to.node("mixed", Primitive::MatMul { transpose_b: false }, &[shares.into(), v.into()]);
        let mixed = net.transpose(mixed, &[0, 2, 1, 3]);
        let mixed = net.reshape(mixed, &[1, TOKENS, heads * head]);
        net.linear(mixed, [heads * head, 6], false)
    })
}

#[test]
fn repeated_keys_and_values_go_with_all_their_queries_however_they_are_repeated() {
    for kv_heads in [2, 3, 4] {
        for by_joining in [false, true] {
            let found = shown(&repeated_keys(kv_heads, by_joining));
            assert_eq!(found, [format!("{kv_heads}: n1/0x12 n2/0x4 n3/0x4 n4/1x12")], "{by_joining}");
        }
    }
}

#[test]
fn a_single_head_of_keys_fixes_the_queries_and_leaves_the_width_of_values() {
    assert_eq!(shown(&repeated_keys(1, false)), ["4: n3/0x1 n4/1x3"]);
}

/// Two experts with tensors of their own. The router gives one probability to each.
fn separate_experts() -> Graph {
    by_hand(|net| {
        let x = net.to.input("x", &[1, 5, 6]);
        let x = net.linear(x, [6, 8], false);
        let logits = net.linear(x, [8, 2], false);
        let shares = net.to.node(
            "route",
            Primitive::Route(briquette_graph::op::Routing { top_k: 1, is_normalized: false }),
            &[logits.into()],
        );
        let shares = net.to.nodes("each", Primitive::Split { axis: 2, sizes: vec![1; 2] }, &[shares.into()], 2);
        let mut sum = x;
        for (share, inner) in shares.into_iter().zip([16, 12]) {
            let y = net.linear(x, [8, inner], false);
            let y = net.to.function("silu", ElementFunction::Silu, y);
            let y = net.linear(y, [inner, 8], false);
            let op = Primitive::Elementwise(ElementFunction::Mul);
            let y = net.to.node("weighed", op, &[y.into(), share.into()]);
            sum = net.to.add("sum", sum, y);
        }
        net.linear(sum, [8, 6], false)
    })
}

#[test]
fn experts_with_tensors_of_their_own_have_inner_widths_of_their_own() {
    let expected = ["8: n1/0x1 n2/1x1 n3/1x1 n4/0x1 n5/1x1 n6/0x1 n7/1x1", "16: n3/0x1 n4/1x1", "12: n5/0x1 n6/1x1"];
    assert_eq!(shown(&separate_experts()), expected);
}
