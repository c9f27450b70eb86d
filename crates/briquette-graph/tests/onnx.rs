//! Graphs of ONNX models.

#![allow(clippy::unwrap_used)]

use briquette_core::{OutputAxis, Role};
use briquette_formats::{Checkpoint, InputFile};
use briquette_graph::coupling::{coupling_groups, parameters_left};
use briquette_graph::onnx::{InputDims, RunnableModel, import};
use briquette_graph::op::{Composite, ElementFunction};
use briquette_graph::roles::roles;
use briquette_graph::{Extents, Graph, Op, Primitive, graph_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx").join(name)
}

fn graph(name: &str) -> Graph {
    graph_of(&Checkpoint::open(&fixture(name)).unwrap(), Extents::default()).unwrap().unwrap()
}

fn operations(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|node| node.op.name()).collect()
}

#[test]
fn a_convolutional_network_has_layers_shapes_and_coupled_channels() {
    let graph = graph("convolutions.onnx");
    let expected = [
        "convolution",
        "batch norm",
        "relu",
        "convolution",
        "relu6",
        "convolution",
        "add",
        "adaptive pool",
        "reshape",
        "linear",
    ];
    assert_eq!(operations(&graph), expected, "computed shapes leave no nodes");
    let lowered = graph.lower().unwrap();
    assert_eq!(lowered.shapes[graph.outputs[0].0], [1, 5]);
    let role = |name: &str| roles(&graph)[graph.weight(name).unwrap().0].role;
    let found = ["stem.weight", "stem.bias", "norm.weight", "head.weight", "head.bias"].map(role);
    assert_eq!(found, [Role::Conv, Role::Bias, Role::Norm, Role::Linear, Role::Bias]);
    let groups = coupling_groups(&graph, &lowered).unwrap();
    let sizes: Vec<(usize, usize)> = groups.iter().map(|group| (group.units.len(), group.places.len())).collect();
    // The channels of stem, norm and depthwise, and those between the last convolution and the head.
    assert_eq!(sizes, [(8, 8), (12, 2)]);
    let n = graph.n_parameters();
    assert_eq!((n, parameters_left(&graph, &groups, 0.5)), (216 + 8 + 16 + 72 + 96 + 65, 108 + 4 + 8 + 36 + 24 + 35));
    assert_eq!(graph.unused, ["zero", "axis", "minus"].map(String::from));
}

#[test]
fn a_perceptron_with_external_data_has_linear_layers_whose_outputs_are_the_last_axis() {
    let graph = graph("external/perceptron.onnx");
    assert_eq!(operations(&graph), ["linear", "silu", "linear"], "a sum with a vector is a bias");
    let axis = |name: &str| roles(&graph)[graph.weight(name).unwrap().0].axis;
    assert_eq!([axis("up"), axis("down")], [OutputAxis::Last; 2]);
    let groups = coupling_groups(&graph, &graph.lower().unwrap()).unwrap();
    assert_eq!((groups.len(), groups[0].units.len()), (1, 16));
}

#[test]
fn an_unknown_operator_keeps_its_name_and_fixes_its_axes() {
    let graph = graph("types.onnx");
    assert_eq!(operations(&graph), ["Mystery", "add"], "the file defines the second as a function");
    assert!(matches!(graph.nodes[0].op, Op::Primitive(Primitive::Unknown { .. })));
    assert!(coupling_groups(&graph, &graph.lower().unwrap()).unwrap().is_empty());
}

#[test]
fn named_extents_are_given_by_name_and_others_are_refused() {
    let file = InputFile::open(&fixture("convolutions.onnx")).unwrap();
    let with = |name: &str| {
        let named = BTreeMap::from([(name.to_string(), 3)]);
        import(&file, &InputDims { named, ..InputDims::default() })
    };
    assert_eq!(with("batch").unwrap().inputs[0].shape, [3, 3, 16, 16]);
    let error = with("btach").unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("--dim btach: no input"), "{error}");
    assert!(error.to_string().contains("the inputs have batch"), "{error}");
}

/// A protobuf field with bytes.
fn field(number: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let (mut n, mut found) = (bytes.len(), vec![number << 3 | 2]);
    while n >= 0x80 {
        found.push(n as u8 | 0x80);
        n >>= 7;
    }
    found.push(n as u8);
    found.extend(bytes);
    found
}

fn node(op_type: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    field(1, operation(op_type, inputs, outputs, attributes))
}

/// The fields of a node.
fn operation(op_type: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    let names = |number: u8, names: &[&str]| names.iter().flat_map(|name| field(number, name)).collect::<Vec<u8>>();
    let attributes: Vec<u8> = attributes.iter().flat_map(|attribute| field(5, attribute)).collect();
    [names(1, inputs), names(2, outputs), field(4, op_type), attributes].concat()
}

fn int(name: &str, value: u8) -> Vec<u8> {
    [field(1, name), vec![0x18, value, 0xa0, 0x01, 2]].concat()
}

fn ints(name: &str, values: &[u8]) -> Vec<u8> {
    [field(1, name), field(8, values), vec![0xa0, 0x01, 7]].concat()
}

fn value(number: u8, name: &str, shape: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = shape.iter().flat_map(|&extent| field(1, [0x08, extent])).collect();
    field(number, [field(1, name), field(2, field(1, [vec![0x08, 1], field(2, dims)].concat()))].concat())
}

/// An F32 initializer of zeros.
fn weight(name: &str, shape: &[u8]) -> Vec<u8> {
    let n = shape.iter().map(|&extent| usize::from(extent)).product::<usize>();
    let dims: Vec<u8> = shape.iter().flat_map(|&extent| [0x08, extent]).collect();
    field(5, [dims, vec![0x10, 1], field(8, name), field(9, vec![0; 4 * n])].concat())
}

/// An I64 initializer.
fn integers(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    field(5, [vec![0x08, values.len() as u8, 0x10, 7], field(8, name), field(9, raw)].concat())
}

/// Imports a model with these fields in its graph.
fn imported(fields: &[Vec<u8>]) -> Result<Graph, briquette_core::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, [vec![0x08, 8], field(7, fields.concat()), field(8, [0x10, 17])].concat()).unwrap();
    import(&InputFile::open(&path).unwrap(), &InputDims::default())
}

/// A function without a domain: its name and its nodes.
fn function(name: &str, nodes: &[Vec<u8>]) -> Vec<u8> {
    let nodes = nodes.iter().flat_map(|node| field(7, node)).collect::<Vec<u8>>();
    let mut found = field(0, [field(1, name), field(4, "a"), field(5, "b"), nodes].concat());
    found.splice(..1, [0xca, 0x01]);
    found
}

/// Imports a model of one call of the first function.
fn called(functions: &[Vec<u8>]) -> Result<Graph, briquette_core::Error> {
    let graph = [node("f0", &["x"], &["y"], &[]), value(11, "x", &[2]), value(12, "y", &[2])].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    let fields = [vec![0x08, 8], field(7, graph), field(8, [0x10, 17]), functions.concat()];
    std::fs::write(&path, fields.concat()).unwrap();
    import(&InputFile::open(&path).unwrap(), &InputDims::default())
}

#[test]
fn calls_become_the_nodes_of_their_functions() {
    let chain = |n: usize, last: &str| -> Vec<Vec<u8>> {
        let callee = |at: usize| if at + 1 < n { format!("f{}", at + 1) } else { last.to_string() };
        (0..n).map(|at| function(&format!("f{at}"), &[operation(&callee(at), &["a"], &["b"], &[])])).collect()
    };
    assert_eq!(operations(&called(&chain(16, "Tanh")).unwrap()), ["tanh"]);
    let absent = function("f0", &[operation("Tanh", &["missing"], &["b"], &[])]);
    let error = called(&[absent]).unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("uses \"missing\""), "{error}");
    for (functions, words) in [(chain(17, "Tanh"), "more than 16 deep"), (chain(1, "f0"), "more than 16 deep")] {
        let error = called(&functions).unwrap_err();
        let text = error.to_string();
        assert!(error.exit_code() == 4 && text.contains(words) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn calls_that_multiply_are_refused_before_they_fill_the_memory() {
    let many = |name: &str, callee: &str| {
        let call = |at: usize| operation(callee, &["a"], &[&format!("b{at}")], &[]);
        let last = operation("Tanh", &["a"], &["b"], &[]);
        function(name, &(0..9).map(call).chain([last]).collect::<Vec<_>>())
    };
    let functions: Vec<Vec<u8>> = (0..9).map(|at| many(&format!("f{at}"), &format!("f{}", at + 1))).collect();
    let error = called(&functions).unwrap_err();
    let text = error.to_string();
    assert!(error.exit_code() == 4 && text.contains("16 MiB") && text.lines().count() == 1, "{text}");
}

#[test]
fn quantized_operators_inside_of_branches_are_refused_too() {
    let branch = |name: &str| {
        let inner = [node("MatMulInteger", &["x", "s"], &["z"], &[]), value(12, "z", &[2])].concat();
        [field(1, name), field(6, inner), vec![0xa0, 0x01, 5]].concat()
    };
    let choice = node("If", &["c"], &["y"], &[branch("then_branch"), branch("else_branch")]);
    let graph = [choice, value(11, "x", &[2]), value(11, "c", &[]), value(12, "y", &[2])].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, [vec![0x08, 8], field(7, graph), field(8, [0x10, 17])].concat()).unwrap();
    let error = RunnableModel::read(InputFile::open(&path).unwrap()).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("MatMulInteger"), "{error}");
}

/// Returns whether a graph for running knows all operators of these parts of a graph, of opset 17.
fn runs(parts: &[Vec<u8>]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    std::fs::write(&path, [vec![0x08, 8], field(7, parts.concat()), field(8, [0x10, 17])].concat()).unwrap();
    let model = RunnableModel::read(InputFile::open(&path).unwrap()).unwrap();
    let graph = model.graph(&InputDims::default()).unwrap();
    !graph
        .nodes
        .iter()
        .any(|node| matches!(node.op, Op::Primitive(Primitive::Unknown { .. } | Primitive::Spatial { .. })))
}

#[test]
fn settings_that_change_the_values_run_or_are_unknown() {
    let text = |name: &str, value: &str| [field(1, name), field(4, value), vec![0xa0, 0x01, 3]].concat();
    let truth = |name: &str, value: u8| field(5, [vec![0x10, 9], field(8, name), field(9, [value])].concat());
    let around =
        |parts: Vec<Vec<u8>>, y: &[u8]| [parts, vec![value(11, "x", &[1, 2, 6, 6]), value(12, "y", y)]].concat();
    let to_depth = |mode: &str| {
        around(vec![node("SpaceToDepth", &["x"], &["y"], &[int("blocksize", 2), text("mode", mode)])], &[1, 8, 3, 3])
    };
    assert!(runs(&to_depth("DCR")) && !runs(&to_depth("CRD")));
    let dropout = |inputs: &[&str], trains: u8| {
        around(vec![truth("t", trains), weight("zero", &[]), node("Dropout", inputs, &["y"], &[])], &[1, 2, 6, 6])
    };
    assert!(runs(&dropout(&["x", "", "t"], 0)) && !runs(&dropout(&["x", "", "t"], 1)));
    assert!(runs(&dropout(&["x", "zero", "t"], 1)), "nothing is dropped");
    let resize = |given: Vec<u8>| {
        around(vec![given, node("Resize", &["x", "", "s"], &["y"], &[text("mode", "linear")])], &[1, 2, 3, 3])
    };
    let halves: Vec<u8> = [1.0_f32, 1.0, 0.5, 0.5].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    assert!(runs(&resize(field(5, [vec![0x08, 4, 0x10, 1], field(8, "s"), field(9, halves)].concat()))));
    assert!(!runs(&resize(value(11, "s", &[4]))), "several scales give this size");
}

/// The shape of the output `y` after nodes that read `x`.
fn shape_after(x: &[u8], nodes: &[Vec<u8>]) -> Vec<usize> {
    let graph = imported(&[nodes.concat(), value(11, "x", x), value(12, "y", &[])]).unwrap();
    let unknown = graph.nodes.iter().find(|node| matches!(node.op, Op::Primitive(Primitive::Unknown { .. })));
    assert!(unknown.is_none(), "{unknown:?}");
    graph.lower().unwrap().shapes[graph.outputs[0].0].clone()
}

#[test]
fn shapes_of_operators_follow_onnx() {
    let to_y = |op: &str, inputs: &[&str], attributes: &[Vec<u8>]| node(op, inputs, &["y"], attributes);
    let list = |name: &str, values: &[i64]| integers(name, values);
    let pool = [ints("kernel_shape", &[3, 3]), ints("strides", &[2, 2]), int("ceil_mode", 1)];
    /// The extents of an input, the nodes, and the extents of the output.
    type Case<'a> = (&'a [u8], Vec<Vec<u8>>, &'a [usize]);
    let cases: Vec<Case> = vec![
        (&[2, 12], vec![list("s", &[0, 3, -1]), to_y("Reshape", &["x", "s"], &[])], &[2, 3, 4]),
        (&[2, 3, 4], vec![to_y("Flatten", &["x"], &[])], &[2, 12]),
        (&[2, 1, 4], vec![list("a", &[-2]), to_y("Squeeze", &["x", "a"], &[])], &[2, 4]),
        (&[2, 4], vec![list("a", &[0, -1]), to_y("Unsqueeze", &["x", "a"], &[])], &[1, 2, 4, 1]),
        (&[2, 3, 4], vec![to_y("Transpose", &["x"], &[])], &[4, 3, 2]),
        (&[2, 1], vec![list("s", &[3, 1, 5]), to_y("Expand", &["x", "s"], &[])], &[3, 2, 5]),
        (&[2, 3], vec![list("r", &[2, 4]), to_y("Tile", &["x", "r"], &[])], &[4, 12]),
        (&[8, 6], slice_of(&[1], &[i64::MAX], &[0], &[1]), &[7, 6]),
        (&[8, 6], slice_of(&[-3], &[-1], &[1], &[1]), &[8, 2]),
        (&[8, 6], slice_of(&[1], &[i64::MAX], &[0], &[2]), &[4, 6]),
        (&[1, 4, 7, 7], vec![to_y("MaxPool", &["x"], &pool)], &[1, 4, 3, 3]),
        (&[1, 4, 8, 8], vec![to_y("MaxPool", &["x"], &pool)], &[1, 4, 4, 4]),
        (&[1, 8, 3, 3], vec![to_y("DepthToSpace", &["x"], &[int("blocksize", 2)])], &[1, 2, 6, 6]),
        (&[1, 2, 6, 6], vec![to_y("SpaceToDepth", &["x"], &[int("blocksize", 2)])], &[1, 8, 3, 3]),
        (&[2, 3, 4], vec![to_y("ReduceMean", &["x"], &[ints("axes", &[1]), int("keepdims", 0)])], &[2, 4]),
        (&[2, 3, 4], vec![to_y("ReduceL2", &["x"], &[ints("axes", &[2])])], &[2, 3, 1]),
        (&[2, 3, 4], vec![list("i", &[2, 0]), to_y("Gather", &["x", "i"], &[int("axis", 1)])], &[2, 2, 4]),
        (&[2, 3, 4], vec![list("i", &[1, 2]), to_y("Gather", &["x", "i"], &[int("axis", 2)])], &[2, 3, 2]),
        (
            &[1, 3, 5, 5],
            vec![weight("w", &[6, 3, 3, 3]), to_y("Conv", &["x", "w"], &[ints("pads", &[0, 0, 1, 1])])],
            &[1, 6, 4, 4],
        ),
        (
            &[1, 3, 5, 5],
            vec![weight("w", &[3, 6, 2, 2]), to_y("ConvTranspose", &["x", "w"], &[ints("strides", &[2, 2])])],
            &[1, 6, 10, 10],
        ),
        (&[3, 5], vec![weight("w", &[3, 7]), to_y("Gemm", &["x", "w"], &[int("transA", 1)])], &[5, 7]),
    ];
    for (x, parts, expected) in cases {
        assert_eq!(shape_after(x, &parts), expected, "{x:?}");
    }
}

fn slice_of(starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]) -> Vec<Vec<u8>> {
    let lists = [("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps)];
    let inputs = ["x", "starts", "ends", "axes", "steps"];
    lists.iter().map(|(name, values)| integers(name, values)).chain([node("Slice", &inputs, &["y"], &[])]).collect()
}

#[test]
fn activations_and_norms_written_as_several_operators_are_recognised() {
    let scalar =
        |name: &str, value: f32| field(5, [vec![0x10, 1], field(8, name), field(9, value.to_le_bytes())].concat());
    let gelu = [
        scalar("root", 2_f32.sqrt()),
        scalar("one", 1.0),
        scalar("half", 0.5),
        node("Div", &["x", "root"], &["a"], &[]),
        node("Erf", &["a"], &["b"], &[]),
        node("Add", &["b", "one"], &["c"], &[]),
        node("Mul", &["x", "c"], &["d"], &[]),
        node("Mul", &["d", "half"], &["y"], &[]),
    ];
    let norm = [
        scalar("eps", 1e-5),
        scalar("two", 2.0),
        weight("g", &[8]),
        weight("b", &[8]),
        node("ReduceMean", &["x"], &["m"], &[ints("axes", &[1])]),
        node("Sub", &["x", "m"], &["c"], &[]),
        node("Pow", &["c", "two"], &["p"], &[]),
        node("ReduceMean", &["p"], &["v"], &[ints("axes", &[1])]),
        node("Add", &["v", "eps"], &["e"], &[]),
        node("Sqrt", &["e"], &["s"], &[]),
        node("Div", &["c", "s"], &["n"], &[]),
        node("Mul", &["n", "g"], &["h"], &[]),
        node("Add", &["h", "b"], &["y"], &[]),
    ];
    let ends = [value(11, "x", &[2, 8]), value(12, "y", &[2, 8])].concat();
    let found = imported(&[gelu.concat(), ends.clone()]).unwrap();
    let is_gelu = Op::Primitive(Primitive::Elementwise(ElementFunction::Gelu));
    assert_eq!(found.nodes.iter().map(|node| &node.op).collect::<Vec<_>>(), [&is_gelu]);
    let found = imported(&[norm.concat(), ends]).unwrap();
    assert!(
        matches!(found.nodes[..], [ref one] if matches!(one.op, Op::Composite(Composite::LayerNorm { .. }))),
        "{found:?}"
    );
}

#[test]
fn graphs_that_cannot_be_ordered_or_have_no_shapes_are_refused_in_one_line() {
    let (x, y) = (value(11, "x", &[2]), value(12, "y", &[2]));
    let cases = [
        (node("Relu", &["later"], &["y"], &[]), "uses \"later\", which no node before it computes"),
        (node("Relu", &["y"], &["y"], &[]), "uses \"y\", which no node before it computes"),
        ([node("Relu", &["x"], &["y"], &[]), node("Relu", &["x"], &["y"], &[])].concat(), "which has a value already"),
        (Vec::new(), "the outputs: uses \"y\""),
    ];
    for (nodes, phrase) in cases {
        let error = imported(&[nodes, x.clone(), y.clone()]).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains(phrase), "{phrase}: {error}");
    }
    let no_rank = field(11, field(1, "x"));
    let error = imported(&[node("Relu", &["x"], &["y"], &[]), no_rank, y]).unwrap_err();
    assert!(error.to_string().contains("input \"x\": has no known rank"), "{error}");
}

#[test]
fn flipped_bytes_never_panic() {
    let good = std::fs::read(fixture("convolutions.onnx")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= [0x01, 0x80, 0xff, 0x10][at % 4];
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = import(&InputFile::open(&path).unwrap(), &InputDims::default()) {
            assert!(error.exit_code() == 4 && !error.message.contains('\n'), "byte {at}: {error}");
        }
    }
}
