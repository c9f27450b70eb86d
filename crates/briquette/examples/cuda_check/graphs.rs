//! Compares networks of graphs on a device with the CPU: encoder, convolutional networks, and decoder with cached keys.

use briquette::core::random::uniform;
use briquette::models::{CacheType, Decoder, GraphNet};
use briquette::nn::{DynamicSpec, quantize_dynamic};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// A comparison: the largest difference relative to the largest value, and its bound.
pub(crate) struct GraphCheck {
    pub(crate) name: String,
    pub(crate) difference: f64,
    pub(crate) most: f64,
}

/// The bound where only the order of sums differs.
const FLOATS: f64 = 1e-2;
/// The bound of int8: a rounded activation may differ by one code if the floats before it differ.
const CODES: f64 = 5e-2;
/// Tokens of the decoder that are run together before single ones.
const PROMPT: usize = 5;

/// Runs every network in dynamic int8 on both devices, and those without convolutions in f32. burn's convolutions of
/// floats are not measured: its tuner would compile many kernels for each shape.
pub(crate) fn compare(device: &Device, cpu: &Device) -> Vec<GraphCheck> {
    type Outputs = fn(&GraphNet, &Device) -> Vec<f32>;
    let networks: [(&str, serde_json::Value, Outputs); 5] = [
        ("encoder", encoder(), embed),
        ("ResNet-18", serde_json::json!({ "model_type": "resnet18", "num_labels": 10 }), classify),
        ("separable convolutions", separable(), classify_digits),
        ("decoder", decoder(), decode),
        ("decoder with windows and caps", capped_decoder(), decode),
    ];
    let mut found = Vec::new();
    for (name, config, run) in networks {
        let host = filled(GraphNet::random(config.as_object().expect("an object"), cpu).expect("a network"));
        let int8 = |network: GraphNet| quantize_dynamic(network, &DynamicSpec::new()).expect("int8").module;
        let on_device = host.clone().fork(device);
        if name.contains("coder") {
            let of_floats = [run(&on_device, device), run(&host, cpu)];
            found.push(check(format!("{name} f32"), of_floats, FLOATS));
        }
        if name.starts_with("decoder") {
            let cached = [decode_cached(&on_device, device), run(&host, cpu)];
            found.push(check(format!("{name} f32, cached keys"), cached, FLOATS));
        }
        let (on_device, host) = (int8(on_device), int8(host));
        let of_codes = [run(&on_device, device), run(&host, cpu)];
        found.push(check(format!("{name} int8"), of_codes, CODES));
        if name.starts_with("decoder") {
            let cached = [decode_cached(&on_device, device), run(&host, cpu)];
            found.push(check(format!("{name} int8, cached keys"), cached, CODES));
        }
    }
    found
}

fn check(name: String, [found, expected]: [Vec<f32>; 2], most: f64) -> GraphCheck {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs()));
    // A maximum would drop NaN.
    let difference = apart.fold(0.0, |most: f64, value| if value > most || value.is_nan() { value } else { most });
    GraphCheck { name, difference: difference / f64::from(largest), most }
}

fn encoder() -> serde_json::Value {
    serde_json::json!({
        "model_type": "bert", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 32
    })
}

fn separable() -> serde_json::Value {
    serde_json::json!({
        "model_type": "digits-cnn", "image_size": [8, 8], "in_channels": 1, "conv_channels": [16, 32], "kernel_size": 3,
        "padding": 1, "separable": true, "pool_size": 2, "hidden_size": 80, "num_labels": 10
    })
}

fn decoder() -> serde_json::Value {
    serde_json::json!({
        "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 32, "rms_norm_eps": 1e-5
    })
}

fn capped_decoder() -> serde_json::Value {
    let mut config = decoder();
    config["sliding_window"] = 5.into();
    config["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
    config["query_pre_attn_scalar"] = 12.into();
    config["attn_logit_softcapping"] = 2.0.into();
    config
}

fn tokens([batch, length]: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i32> = (0..batch * length).map(|at| (at * 37 % 89 + 3) as i32).collect();
    Tensor::from_data(TensorData::new(ids, [batch, length]), device)
}

fn embed(network: &GraphNet, device: &Device) -> Vec<f32> {
    let is_padding: Vec<bool> = (0..18).map(|at| at > 15).collect();
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(is_padding, [2, 9]), device);
    values(network.encode(tokens([2, 9], device), padding))
}

fn images([channels, side]: [usize; 2], device: &Device) -> Tensor<4> {
    let pixels: Vec<f32> = (0..2 * channels * side * side).map(|at| uniform(5, at as u64) * 2.0 - 1.0).collect();
    Tensor::from_data(TensorData::new(pixels, [2, channels, side, side]), device)
}

fn classify(network: &GraphNet, device: &Device) -> Vec<f32> {
    values(network.classify(images([3, 32], device)))
}

fn classify_digits(network: &GraphNet, device: &Device) -> Vec<f32> {
    values(network.classify(images([1, 8], device)))
}

fn decode(network: &GraphNet, device: &Device) -> Vec<f32> {
    values(network.decode(tokens([1, 12], device)))
}

/// Runs a prompt, then token by token, with cached keys and values.
fn decode_cached(network: &GraphNet, device: &Device) -> Vec<f32> {
    let (all, mut caches) = (tokens([1, 12], device), [network.key_values(CacheType::F32)]);
    let parts = std::iter::once(0..PROMPT).chain((PROMPT..12).map(|at| at..at + 1));
    let logits = parts.flat_map(|part| {
        let state = network.next_state(all.clone().slice_dim(1, part), &mut caches);
        values(network.scores(state))
    });
    logits.collect()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Fills a network with the same weights in every run.
pub(crate) fn filled<M: Module>(network: M) -> M {
    struct Fill(u64);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let seed = self.0;
            param.map(|old| {
                let shape = old.dims();
                let n: usize = shape.iter().product();
                // Kaiming's bound keeps activations of a deep network from vanishing or growing.
                let size = if D == 1 { return old } else { (3.0 * shape[0] as f32 / n as f32).sqrt() };
                let values: Vec<f32> = (0..n).map(|at| (uniform(seed, at as u64) * 2.0 - 1.0) * size).collect();
                Tensor::from_data(TensorData::new(values, shape), &old.device())
            })
        }
    }
    network.map(&mut Fill(0))
}
