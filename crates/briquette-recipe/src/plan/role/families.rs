//! Checks roles against transformers and torch, with the lists in `fixtures/roles` that
//! `fixtures/make_roles.py` writes.

use super::roles::RoleContext;
use briquette_core::Role;
use briquette_core::{DType, OutputAxis, Shape};
use briquette_formats::TensorInfo;
use briquette_formats::model_config::ModelFamily;
use briquette_writer::known::{Known, Reason};
use std::path::PathBuf;
use std::sync::Arc;

/// The tensors of a family, each with the class of the module that uses it.
struct Listed {
    name: String,
    family: ModelFamily,
    tensors: Vec<(TensorInfo, String)>,
}

fn listed() -> Vec<Listed> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/roles");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let (config, lines) = text.split_once('\n').unwrap();
        let tensor = |line: &str| {
            let [name, shape, class] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let shape: Vec<usize> = serde_json::from_str(shape).unwrap();
            (TensorInfo::checked(name.into(), DType::F32, shape).unwrap(), class.to_string())
        };
        Listed {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            family: ModelFamily::read(&serde_json::from_str(config).unwrap()),
            tensors: lines.lines().map(tensor).collect(),
        }
    };
    paths.into_iter().map(read).collect()
}

/// Returns the detected roles of the tensors of a family.
fn known(listed: &Listed, with_config: bool) -> Vec<(TensorInfo, String, Known)> {
    let infos: Vec<TensorInfo> = listed.tensors.iter().map(|(info, _)| info.clone()).collect();
    let family = if with_config { listed.family.clone() } else { ModelFamily::default() };
    let roles = RoleContext::new(&infos, family, None, &[]);
    listed.tensors.iter().map(|(info, class)| (info.clone(), class.clone(), roles.of(info))).collect()
}

/// Returns whether a role fits a class. Biases and scales may have any role that stages skip.
fn is_right(info: &TensorInfo, class: &str, known: Known) -> bool {
    let is_left_alone = matches!(known.role, Role::Norm | Role::Bias | Role::Parameter | Role::Unknown);
    let leaf = info.name.rsplit('.').next().unwrap();
    if info.shape.rank() < 2 {
        return matches!(known.role, Role::Norm | Role::Bias) && !(class == "Linear" && known.role == Role::Norm);
    }
    let straight = (known.axis, known.why.is_plain_linear()) == (OutputAxis::First, true);
    let is_one_extent = info.shape.0.iter().filter(|&&n| n != 1).count() <= 1;
    let axis = if class.starts_with("ConvTranspose") { OutputAxis::Second } else { OutputAxis::First };
    if leaf == "original0" || leaf.starts_with("weight_") && leaf.ends_with("_g") {
        return known.role == Role::Parameter;
    }
    if leaf == "original1" || leaf.starts_with("weight_") && leaf.ends_with("_v") {
        let role = if info.shape.rank() == 2 { Role::Linear } else { Role::Conv };
        let is_known_axis = class == "Parameter" || known.axis == axis;
        return (known.role, known.why) == (role, Reason::WeightNormDirections) && is_known_axis;
    }
    match class {
        "Linear" if info.name.contains("shared_expert_gate") => known.why == Reason::Router,
        "Linear" => known.role == Role::Linear && straight,
        "Conv1D" => known.role == Role::Linear && known.axis == OutputAxis::Last && !known.is_plain_linear(),
        "Bilinear" => known.role == Role::Conv,
        _ if class.contains("Conv") && is_one_extent => is_left_alone,
        _ if class.contains("Conv") => (known.role, known.axis) == (Role::Conv, axis),
        "Embedding" if info.name.contains("relative_attention_bias") => known.role == Role::Bias,
        "Embedding" | "EmbeddingBag" => known.role == Role::Embedding,
        "LSTM" | "MultiheadAttention" => known.role == Role::Linear && !known.is_plain_linear(),
        "Experts" => (known.role, known.axis) == (Role::Linear, OutputAxis::Stacked),
        "TurnedExperts" if info.shape.rank() == 3 => known.why == Reason::TurnedExperts,
        "Router" => known.why == Reason::Router,
        _ => is_left_alone,
    }
}

#[test]
fn roles_of_all_families_match_the_classes() {
    let families = listed();
    assert!(families.len() > 60, "{} families", families.len());
    let mut wrong = Vec::new();
    for family in &families {
        for (info, class, known) in known(family, true) {
            if !is_right(&info, &class, known) {
                wrong.push(format!("{}: {} {} {class} is {known:?}", family.name, info.name, info.shape));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn roles_match_the_classes_without_config_json() {
    let mut wrong = Vec::new();
    for family in &listed() {
        for (info, class, known) in known(family, false) {
            if !is_right(&info, &class, known) {
                wrong.push(format!("{}: {} {class} is {known:?}", family.name, info.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn few_tensors_have_an_unknown_role() {
    let is_unknown = |(info, _, known): &(TensorInfo, String, Known)| {
        (known.role == Role::Unknown).then(|| info.name.rsplit('.').next().unwrap().to_string())
    };
    let mut names: Vec<String> =
        listed().iter().flat_map(|family| known(family, true)).filter_map(|t| is_unknown(&t)).collect();
    names.sort();
    names.dedup();
    // Experts of this family are `[experts, in, out]`, and XLNet's matrices are `[in, heads, size]`.
    assert_eq!(names, ["down_proj", "gate_up_proj", "k", "o", "q", "r", "v"]);
}

fn one(name: &str, shape: &[usize], beside: &[(&str, &[usize])]) -> Known {
    let info =
        |(name, shape): &(&str, &[usize])| TensorInfo::checked((*name).into(), DType::F32, shape.to_vec()).unwrap();
    let infos: Vec<TensorInfo> = std::iter::once(&(name, shape)).chain(beside).map(info).collect();
    RoleContext::new(&infos, ModelFamily::default(), None, &[]).of(&infos[0])
}

#[test]
fn a_bias_shows_which_axis_counts_outputs() {
    assert_eq!(one("a.weight", &[4, 6], &[("a.bias", &[4])]).why, Reason::MatrixWithBias);
    let turned = one("a.weight", &[4, 6], &[("a.bias", &[6])]);
    assert_eq!((turned.role, turned.axis, turned.why), (Role::Linear, OutputAxis::Last, Reason::TurnedByBias));
    assert_eq!(
        one("a.weight", &[6, 6], &[("a.bias", &[6])]).axis,
        OutputAxis::First,
        "a square matrix does not show it"
    );
    assert_eq!(one("embed.weight", &[4, 6], &[("embed.bias", &[4])]).role, Role::Linear, "embeddings have no bias");
    assert_eq!(one("a.weight", &[4, 6], &[("a.bias", &[4, 6])]).role, Role::Norm);
}

#[test]
fn transposed_convolutions_have_outputs_on_the_second_axis() {
    let found = |name: &str, shape: &[usize], beside: &[(&str, &[usize])]| {
        let known = one(name, shape, beside);
        assert_eq!(known.role, Role::Conv, "{name} {shape:?}");
        (known.axis, known.why)
    };
    let second = |why| (OutputAxis::Second, why);
    assert_eq!(found("up.weight", &[6, 8, 2], &[("up.bias", &[8])]), second(Reason::TransposedByBias));
    let norm: (&str, &[usize]) = ("main.1.running_mean", &[8]);
    assert_eq!(found("main.0.weight", &[6, 8, 2, 2], &[norm]), second(Reason::TransposedByNorm));
    assert_eq!(found("deconv.weight", &[6, 6, 2], &[("deconv.bias", &[6])]), second(Reason::TransposedByName));
    assert_eq!(found("neck.0.resize.weight", &[6, 6, 4, 4], &[]), second(Reason::TransposedByName));
    for (name, shape, beside) in [
        ("up.weight", &[8, 6, 2][..], ("up.bias", &[8][..])),
        ("up.weight", &[6, 6, 2], ("up.bias", &[6])),
        ("deconv.weight", &[8, 6, 2], ("deconv.bias", &[8])),
        ("main.0.weight", &[8, 6, 2], norm),
        ("neck.3.resize.weight", &[6, 6, 3, 3], ("neck.3.resize.bias", &[6])),
    ] {
        assert_eq!(found(name, shape, &[beside]), (OutputAxis::First, Reason::Filters), "{name} {shape:?}");
    }
    let grouped = (OutputAxis::First, Reason::GroupedTransposed);
    assert_eq!(found("up.weight", &[12, 6, 4], &[("up.bias", &[18])]), grouped);
}

#[test]
fn a_class_in_the_file_shows_a_transposed_convolution() {
    let tensor = |name: &str, shape: &[usize]| TensorInfo::checked(name.into(), DType::F32, shape.to_vec()).unwrap();
    let infos = [tensor("a.weight", &[6, 6, 3]), tensor("b.weight", &[6, 6, 3])];
    let family = ModelFamily { transposed_layers: ["a".to_string()].into(), ..ModelFamily::default() };
    let roles = RoleContext::new(&infos, family, None, &[]);
    assert_eq!((roles.of(&infos[0]).axis, roles.of(&infos[0]).why), (OutputAxis::Second, Reason::TransposedByClass));
    assert_eq!(roles.of(&infos[1]).axis, OutputAxis::First);
}

#[test]
fn directions_and_lengths_need_each_other() {
    let beside: [(&str, &[usize]); 1] = [("a.weight_g", &[4, 1, 1])];
    let known = one("a.weight_v", &[4, 6, 3], &beside);
    assert_eq!((known.role, known.why), (Role::Conv, Reason::WeightNormDirections));
    assert_eq!(one("a.weight_v", &[4, 6, 3], &[]).role, Role::Unknown, "no lengths beside it");
    assert_eq!(one("a.weight_v", &[5, 6, 3], &beside).role, Role::Unknown, "lengths of another shape");
    assert_eq!(one("l.weight_hh_l0_g", &[8, 1], &[("l.weight_hh_l0_v", &[8, 3])]).role, Role::Parameter);
}

#[test]
fn bare_tables_are_embeddings_only_under_names_of_tables() {
    for (name, role) in [
        ("level_embed", Role::Parameter),
        ("decoder.position_embeddings", Role::Parameter),
        ("pe.positional_embedding", Role::Parameter),
        ("positions", Role::Parameter),
        ("quantizer.codebook.embed", Role::Parameter),
        ("attn.rel_pos_h", Role::Parameter),
        ("params.embed.embedding", Role::Embedding),
        ("word_embeddings", Role::Embedding),
        ("mlp.fc1_weight", Role::Linear),
    ] {
        assert_eq!(one(name, &[6, 8], &[]).role, role, "{name}");
    }
}

#[test]
fn a_square_conv1d_follows_its_neighbours() {
    let square = |fc: &[usize]| one("h.0.c_proj.weight", &[8, 8], &[("h.0.c_fc.weight", fc), ("h.0.c_fc.bias", &[32])]);
    assert_eq!((square(&[8, 32]).axis, square(&[8, 32]).why), (OutputAxis::Last, Reason::Conv1dByBias));
    assert_eq!(square(&[32, 8]).axis, OutputAxis::First);
}

#[test]
fn unmatched_tensors_are_unknown_and_integers_are_other() {
    for (name, shape) in [("text_projection", &[4, 6][..]), ("experts.w9", &[2, 4, 6]), ("x.kernel", &[4, 6])] {
        assert_eq!(one(name, shape, &[]).role, Role::Unknown, "{name}");
    }
    let experts = one("experts.up_proj", &[2, 4, 6], &[]);
    assert_eq!((experts.role, experts.why), (Role::Unknown, Reason::ExpertsEitherWay));
    let ints = TensorInfo { dtype: DType::I64, name: "a.weight".into(), shape: Arc::new(Shape(vec![2, 2])) };
    assert_eq!(RoleContext::new(&[], ModelFamily::default(), None, &[]).of(&ints).role, Role::Other);
}

#[test]
fn a_rule_overrides_the_name_and_may_set_the_axis() {
    use briquette_core::RoleRule;
    use briquette_core::pattern::Patterns;
    let info = |name: &str| TensorInfo::checked(name.into(), DType::F32, vec![2, 4, 4]).unwrap();
    let infos = [info("a.w"), info("b.w"), info("c.w")];
    let rule = |glob: &str, axis| RoleRule { patterns: Patterns::new([glob]).unwrap(), role: Role::Linear, axis };
    let rules = [rule("a.*", None), rule("b.*", Some(OutputAxis::Stacked))];
    let roles = RoleContext::new(&infos, ModelFamily::default(), None, &rules);
    assert_eq!(roles.of(&infos[0]), Known { role: Role::Linear, axis: OutputAxis::First, why: Reason::Told });
    assert_eq!(roles.of(&infos[1]).axis, OutputAxis::Stacked);
    assert_eq!(roles.of(&infos[2]).role, Role::Unknown);
}
