//! Training with a user's own modules, losses, optimizers and schedules.

use crate::points::*;
use briquette_core::ErrorKind;
use briquette_distill::{
    Blend, Cached, Checkpoints, Distiller, Foreign, Frozen, Goal, Loss, Outputs, Settings, Targets, Teacher, Traced,
    TrainingBatch, TrainingData, Wanted,
};
use briquette_nn::{Compression, Prune, Quantize, parameters, sparsity};
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamGroup};
use burn::nn;
use burn::optim::{AdamConfig, ModuleOptimizer, RmsPropConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use std::path::Path;

/// Wraps [`Net`] without its trait.
type ForeignNet = Foreign<Net, Tensor<2>>;

fn foreign(net: Net) -> ForeignNet {
    Foreign::new(net, |net: &Net, x: &Tensor<2>| Traced::outputs(net, x, Wanted::default()))
}

fn blend_of(loss: Loss) -> Settings {
    Settings { blend: blend(loss), ..settings(3) }
}

#[test]
fn a_custom_loss_is_weighted_logged_and_minimized() {
    let own = Loss::custom("apart", apart);
    let terms = vec![Loss::Labels(0.0).times(0.25), own.clone().times(2.0)];
    let finished = in_memory(Settings { blend: Blend::new(terms).unwrap(), ..settings(20) }).unwrap();
    let steps = steps(&finished);
    for step in &steps {
        assert_eq!(step.names, ["labels", "apart"]);
        assert!((step.loss - 0.25 * step.terms[0] - 2.0 * step.terms[1]).abs() < 1e-5, "{step:?}");
    }
    assert!(steps[79].terms[1] < 0.5 * steps[0].terms[1]);
    assert!(own == own.clone() && own != Loss::custom("apart", apart), "copies of a loss are equal");
}

#[test]
fn invalid_custom_losses_are_refused_by_name() {
    let message = |loss| in_memory(blend_of(loss)).unwrap_err().to_string();
    let rows = |student: &Outputs, _: Targets| Ok(student.need_logits()?.sum_dim(1).squeeze_dim(1));
    assert!(message(Loss::custom("rows", rows)).contains("loss \"rows\": it returned 2 numbers, expected one"));
    let nan = |student: &Outputs, _: Targets| Ok(student.need_logits()?.mean() * f32::NAN);
    // The first run makes no step, and checks only shapes.
    assert!(message(Loss::custom("broken", nan)).contains("the loss \"broken\" is NaN at step 1"));
    let cut = |student: &Outputs, _: Targets| Ok(student.need_logits()?.detach().mean());
    assert!(message(Loss::custom("cut", cut)).contains("does not depend on any trainable parameter"));
    let wide = |student: &Outputs, _: Targets| Ok(student.need_embedding()?.mean());
    assert!(message(Loss::custom("wide", wide)).contains("loss \"wide\": the network has no embeddings"));
    assert!(Blend::new(vec![Loss::custom(" ", apart).times(1.0)]).unwrap_err().to_string().contains("needs a name"));

    let sample = Points(2).batch(&[0], &Device::flex()).unwrap();
    let alone = Distiller::new(student(), Compression::new(), blend_of(Loss::custom("apart", apart)), None, &sample, 1);
    assert!(alone.map(drop).unwrap_err().to_string().contains("loss \"apart\": there is no teacher"));
}

#[test]
fn any_burn_optimizer_and_scheduler_resumes() {
    let rates = || ExponentialLrSchedulerConfig::new(1e-2, 0.9).init().unwrap();
    let own = || settings(3).with_optimizer(RmsPropConfig::new().init()).with_schedule(rates());
    let whole = tempfile::tempdir().unwrap();
    let checkpoints = |directory: &Path| Checkpoints::at(directory).unwrap();
    let expected = run(own(), &checkpoints(whole.path()), &mut ()).unwrap();
    let found: Vec<f64> = steps(&expected).iter().map(|step| step.learning_rate).collect();
    assert!(found.windows(2).all(|pair| (pair[1] / pair[0] - 0.9).abs() < 1e-9), "{found:?}");
    for at in [3, 7] {
        let directory = tempfile::tempdir().unwrap();
        run(own(), &checkpoints(directory.path()), &mut StopAfter(at)).unwrap_err();
        let finished = run(own(), &checkpoints(directory.path()), &mut ()).unwrap();
        assert_eq!(finished.resumed_at, at / 3 * 3);
        assert_eq!(weights(&finished.student), weights(&expected.student));
    }
}

#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    let with = |optimizer: ModuleOptimizer| settings(3).with_optimizer(optimizer);
    let momentum = burn::optim::momentum::MomentumConfig::new();
    let sgd = || with(SgdConfig::new().with_momentum(Some(momentum.clone())).init());
    let plain = || with(SgdConfig::new().init());
    let adam = || with(AdamConfig::new().init());
    let pairs = [(sgd(), adam()), (adam(), sgd()), (plain(), adam()), (adam(), plain())];
    for (before, after) in pairs {
        let directory = tempfile::tempdir().unwrap();
        run(before, &Checkpoints::at(directory.path()).unwrap(), &mut StopAfter(4)).unwrap_err();
        let error = run(after, &Checkpoints::at(directory.path()).unwrap(), &mut ()).unwrap_err();
        assert!(
            error.to_string().contains("belongs to another optimizer") && Checkpoints::is_damage(&error),
            "{error}"
        );
    }
}

#[test]
fn parameter_groups_match_the_paths_of_the_student() {
    let before = weights(&student());
    let still = ModuleLrScheduler::new(1e-2).with_group(ParamGroup::from_predicate("inner"), 0.0);
    let finished = in_memory(settings(2).with_schedule(still)).unwrap();
    let (after, n_inner) = (weights(&finished.student), INPUTS * 5);
    assert_eq!(after[..n_inner], before[..n_inner]);
    assert_ne!(after[n_inner..], before[n_inner..]);

    let stuck = AdamConfig::new().init().with_group(ParamGroup::from_path("inner.weight"), Stuck, None);
    let after = weights(&in_memory(settings(2).with_optimizer(stuck)).unwrap().student);
    assert_eq!(after[..n_inner], before[..n_inner]);
    assert_ne!(after[n_inner..], before[n_inner..]);
}

/// A user's own optimizer, which leaves all parameters unchanged.
#[derive(Clone)]
struct Stuck;

impl burn::optim::Optimizer for Stuck {
    type State<const D: usize> = burn::optim::SgdState<D>;

    fn step<const D: usize>(
        &self,
        _rate: f64,
        tensor: Tensor<D>,
        _grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        (tensor, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, _device: &Device) -> Self::State<D> {
        state
    }
}

#[test]
fn double_clipping_and_unplanned_steps_are_refused() {
    let clipping = burn::grad_clipping::GradientClippingConfig::Norm(1.0);
    let twice = settings(1).with_optimizer(AdamConfig::new().with_grad_clipping(Some(clipping)).init());
    let error = in_memory(twice.clone()).unwrap_err();
    assert!(
        error.kind == ErrorKind::Config && error.to_string().contains("the optimizer clips gradients too"),
        "{error}"
    );
    in_memory(Settings { clip: None, ..twice }).unwrap();

    let (teacher, data) = (teacher(), Points(64));
    let sample = data.batch(&[0], &Device::flex()).unwrap();
    let made = Distiller::new(student(), Compression::new(), settings(1), Some(&teacher), &sample, 3).unwrap();
    let error = made.0.run(made.1, Some(&teacher), &data, &Checkpoints::in_memory(), &mut ()).unwrap_err();
    assert!(
        error.to_string().contains("epoch 1, batch 4: n_steps: the learning rate is planned for 3 steps"),
        "{error}"
    );
}

#[test]
fn training_in_memory_gives_the_same_student_and_best_epoch() {
    let goal = Some(Goal { metric: "apart".into(), is_more_better: false });
    let settings = || Settings { goal: goal.clone(), learning_rate: 0.5, ..settings(6) };
    let directory = tempfile::tempdir().unwrap();
    let on_disk = run(settings(), &Checkpoints::at(directory.path()).unwrap(), &mut StopAfter(0)).unwrap();
    let checkpoints = Checkpoints::in_memory();
    let found = run(settings(), &checkpoints, &mut StopAfter(0)).unwrap();
    assert_eq!(weights(&found.student), weights(&on_disk.student));
    assert!(found.best == on_disk.best && losses(&found) == losses(&on_disk));
    assert!(found.best.unwrap().epoch < 6, "the test needs a best epoch before the last");
    assert_eq!(checkpoints.directory(), None);
    // There is nothing to resume: a second run starts anew.
    let again = run(settings(), &checkpoints, &mut StopAfter(0)).unwrap();
    assert_eq!((again.resumed_at, losses(&again)), (0, losses(&found)));
}

#[test]
fn a_student_on_a_plain_device_is_refused() {
    let (teacher, sample) = (teacher(), Points(4).batch(&[0, 1], &Device::flex()).unwrap());
    let start = |net| Distiller::new(net, Compression::new(), settings(1), Some(&teacher), &sample, 4).map(drop);
    let error = start(Net::new(5, 2, &Device::flex())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Config);
    assert!(error.to_string().contains("device.autodiff()") && error.to_string().contains("model.train()"), "{error}");
    start(Net::new(5, 2, &Device::flex()).train()).unwrap();
}

/// A student and a teacher of types that do not depend on Briquette.
#[derive(Module, Debug)]
struct Theirs {
    layers: Vec<nn::Linear>,
}

impl Theirs {
    fn new(device: &Device) -> Self {
        let layer = |from, to| nn::LinearConfig::new(from, to).init(device);
        Self { layers: vec![layer(INPUTS, 8), layer(8, 3)] }
    }

    fn scores(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers[1].forward(self.layers[0].forward(x).tanh())
    }
}

#[test]
fn a_foreign_module_learns_from_another_type_under_its_own_paths() {
    Device::flex().seed(5);
    let teacher = Frozen::new(&foreign(Net::new(12, 1, &Device::flex())));
    let theirs = Theirs::new(&Device::flex().autodiff());
    let student = Foreign::new(theirs.clone(), |net: &Theirs, x: &Tensor<2>| Outputs::of_logits(net.scores(x.clone())));
    let paths = |parameters: Vec<briquette_nn::Parameter>| -> Vec<String> {
        parameters.into_iter().map(|parameter| parameter.path).collect()
    };
    assert_eq!(paths(parameters(&student)), paths(parameters(&theirs)));

    let rules = Compression::new()
        .prune(Prune::new("layers.0.weight", 0.5).unwrap())
        .quantize(Quantize::new("layers.1.weight", "int8").unwrap());
    let data = Points(64);
    let sample = data.batch(&[0, 1], &Device::flex()).unwrap();
    let made = Distiller::new(student, rules, settings(20), Some(&teacher), &sample, 80).unwrap();
    let (distiller, model) = made;
    let finished = distiller.run(model, Some(&teacher), &data, &Checkpoints::in_memory(), &mut ()).unwrap();
    let losses: Vec<f64> = steps(&finished).iter().map(|step| step.loss).collect();
    assert!(losses[79] < 0.3 * losses[0], "{losses:?}");

    // The module alone has masks, grids, and a record that fits a bare module.
    let network = finished.student.network;
    assert_eq!(sparsity(&network).unwrap()["layers.0.weight"].n_zeros, INPUTS * 8 / 2);
    let x = sample.input;
    let plain = network.valid().materialize();
    let bare = Theirs::new(&Device::flex()).load_record(plain.clone().into_record());
    let [found, expected] = [bare, network.valid()].map(|net| net.scores(x.clone()).into_data());
    assert_eq!(found, expected);
}

#[test]
fn a_cached_teacher_refuses_unknown_items() {
    let (teacher, data) = (teacher(), Points(4));
    let cached = Cached::of::<Tensor<2>>(&teacher, &data, 3, 4, &Device::flex()).unwrap();
    let batch = TrainingBatch { rows: Vec::new(), ..data.batch(&[1], &Device::flex()).unwrap() };
    let error = Teacher::<Tensor<2>>::outputs(&cached, &batch, Wanted::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Config && error.to_string().contains("has no item indices"), "{error}");
}
