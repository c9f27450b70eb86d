//! Tests of blends: sums and refused settings.

use briquette_core::ErrorKind;
use briquette_distill::{
    Blend, Distance, Divergence, LayerMap, Loss, Match, Outputs, Projections, Relation, Targets, Term, Wanted,
};
use burn::tensor::{Device, Int, Tensor};

fn term(loss: Loss, weight: f64) -> Term {
    Term { loss, weight }
}

fn scores(values: [[f32; 3]; 2]) -> Outputs {
    Outputs { logits: Some(Tensor::from_floats(values, &Device::flex())), ..Outputs::default() }
}

fn states(n_layers: usize, width: usize) -> Outputs {
    let layer = |at: usize| Tensor::<3>::full([2, 3, width], at as f32, &Device::flex());
    Outputs { hidden: (0..n_layers).map(layer).collect(), ..Outputs::default() }
}

fn value(tensor: &Tensor<1>) -> f32 {
    tensor.clone().into_scalar()
}

#[test]
fn a_blend_is_the_weighted_sum_of_its_terms() {
    let blend = Blend::new(vec![
        term(Loss::Logits(Divergence::Kl, 2.0), 0.75),
        term(Loss::Labels(0.0), 0.25),
        term(Loss::Logits(Divergence::JensenShannon(0.5), 1.0), 0.0),
    ]);
    let (student, teacher) = (scores([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), scores([[0.0, 1.0, 0.0], [0.0, 2.0, 1.0]]));
    let labels = Tensor::<1, Int>::from_ints([0, 1], &Device::flex());
    let targets = Targets { teacher: Some(&teacher), labels: Some(&labels), projections: None };
    let found = blend.unwrap().loss(&student, targets).unwrap();
    let [kl, hard, js] = [0, 1, 2].map(|at| value(&found.terms[at]));
    assert!(kl > 0.0 && hard > 0.0 && js > 0.0);
    assert!((value(&found.total) - (0.75 * kl + 0.25 * hard)).abs() < 1e-6);
}

#[test]
fn hidden_states_follow_the_layer_map_through_projections() {
    let blend = |map| Blend::new(vec![term(Loss::Hidden(Distance::Mse, map), 1.0)]).unwrap();
    let (student, teacher) = (states(2, 4), states(4, 4));
    let targets = |teacher| Targets { teacher: Some(teacher), ..Targets::default() };
    // Each layer's states equal its index: 0 and 1 follow 1 and 3, then 0 and 1, then 3 and 0.
    let loss = |map| value(&blend(map).loss(&student, targets(&teacher)).unwrap().total);
    assert_eq!(loss(LayerMap::Every), (1.0 + 4.0) / 2.0);
    assert_eq!(loss(LayerMap::First), 0.0);
    assert_eq!(loss(LayerMap::Explicit(vec![3, 0])), (9.0 + 1.0) / 2.0);

    let wide = states(4, 6);
    let error = blend(LayerMap::Every).loss(&student, targets(&wide)).unwrap_err().to_string();
    assert!(error.contains("the student has 4 and the teacher 6"), "{error}");
    let projections = Projections::new(2, [4, 6], &Device::flex());
    let bridged = Targets { projections: Some(&projections), ..targets(&wide) };
    assert!(value(&blend(LayerMap::Every).loss(&student, bridged).unwrap().total) > 0.0);
}

#[test]
fn only_needed_outputs_are_requested() {
    let wanted = |loss| Blend::new(vec![term(loss, 1.0)]).unwrap().wanted();
    assert!(wanted(Loss::Embedding(Match::Cosine)).is_end_only());
    assert_eq!(wanted(Loss::Hidden(Distance::Cosine, LayerMap::Last)), Wanted { hidden: true, ..Wanted::default() });
    let maps = Loss::Attention(Relation::Maps, LayerMap::Last);
    assert_eq!(wanted(maps), Wanted { attention: true, ..Wanted::default() });
    assert!(!Blend::new(vec![term(Loss::Labels(0.1), 1.0)]).unwrap().needs_teacher());
}

#[test]
fn invalid_blends_are_refused_in_one_line() {
    let cases = [
        (vec![], "the weights sum to 0"),
        (vec![term(Loss::Labels(0.0), 0.0)], "the weights sum to 0"),
        (vec![term(Loss::Labels(0.0), -1.0)], "loss \"labels\": weight: found -1"),
        (vec![term(Loss::Labels(0.0), f64::NAN)], "weight: found NaN"),
        (vec![term(Loss::Labels(1.0), 1.0)], "smoothing: found 1"),
        (vec![term(Loss::Logits(Divergence::Kl, 0.0), 1.0)], "loss \"logits\": temperature: found 0, expected above 0"),
        (vec![term(Loss::Logits(Divergence::Kl, f32::NAN), 1.0)], "temperature: found NaN"),
        (vec![term(Loss::Attention(Relation::Values(0), LayerMap::Every), 1.0)], "heads: found 0"),
    ];
    for (terms, expected) in cases {
        let error = Blend::new(terms).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn different_classes_and_missing_outputs_are_reported() {
    let logits = Blend::new(vec![term(Loss::Logits(Divergence::Kl, 1.0), 1.0)]).unwrap();
    let student = scores([[0.0; 3]; 2]);
    let of_two = Outputs { logits: Some(Tensor::zeros([2, 2], &Device::flex())), ..Outputs::default() };
    let message = |blend: &Blend, targets| blend.loss(&student, targets).unwrap_err().to_string();
    let targets = Targets { teacher: Some(&of_two), ..Targets::default() };
    assert!(message(&logits, targets).contains("classes: the student has 3 and the teacher 2"));
    assert!(message(&logits, Targets::default()).contains("there is no teacher"));
    let labels = Blend::new(vec![term(Loss::Labels(0.0), 1.0)]).unwrap();
    assert!(message(&labels, Targets::default()).contains("the data has no labels"));
    let embedding = Blend::new(vec![term(Loss::Embedding(Match::Cosine), 1.0)]).unwrap();
    assert!(message(&embedding, targets).contains("the student has no embeddings"));
}
