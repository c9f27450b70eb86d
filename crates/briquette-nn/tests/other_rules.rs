//! Tests modules and records with other rules than the attached ones.

use crate::fixture::net::Net;
use crate::fixture::values;
use briquette_core::ErrorKind;
use briquette_nn::{Compression, Export, Prune, Quantize, Schedule, Score, decisions, load_record};
use burn::module::{Module, ParamGroup};
use burn::store::ModuleRecord;
use burn::tensor::Device;

fn pruned(rule: Prune) -> Compression {
    Compression::new().prune(rule)
}

fn rounded(scheme: &str) -> Compression {
    Compression::new().quantize(Quantize::new("hidden.weight", scheme).unwrap())
}

fn half() -> Prune {
    Prune::new("hidden.weight", 0.5).unwrap()
}

/// Returns rules for one parameter that all differ in some setting.
fn all() -> Vec<Compression> {
    let mut all = vec![
        pruned(half()),
        pruned(Prune::new("hidden.weight", 0.4).unwrap()),
        pruned(Prune::n_of_m("hidden.weight", 2, 4).unwrap()),
        pruned(Prune::n_of_m("hidden.weight", 1, 4).unwrap()),
        pruned(half().of_each_row()),
        pruned(half().of_each_columns(8)),
        pruned(half().globally()),
        pruned(half().score(Score::Random(3))),
        pruned(half().on(Schedule::linear(0..9))),
        pruned(half().starting_at(0.25).unwrap().on(Schedule::linear(0..9))),
        pruned(half()).quantize(Quantize::new("hidden.weight", "int4").unwrap()),
    ];
    all.extend(["int8", "int4", "int4-g8", "int4-g16", "int4-asym", "int8-dynamic", "int4-g8-dynamic"].map(rounded));
    all.push(Compression::new().quantize(Quantize::new("hidden.weight", "int8").unwrap().learned()));
    all.push(Compression::new().quantize(Quantize::new("hidden.weight", "int8").unwrap().on(Schedule::once())));
    all
}

#[test]
fn only_the_attached_rules_refresh_a_module_and_load_its_record() {
    let (net, dir) = (Net::new(&Device::flex()), tempfile::tempdir().unwrap());
    let path = dir.path().join("net.bpk");
    for (place, rules) in all().iter().enumerate() {
        let attached = rules.attach(net.clone()).unwrap();
        attached.clone().save_file(&path).unwrap();
        let decided = decisions(&attached).unwrap();
        for (other_place, other) in all().iter().enumerate() {
            for step in [0, 1, 10] {
                let refreshed = other.refresh(attached.clone(), step);
                if place == other_place {
                    assert!(refreshed.is_ok(), "rules {place} at step {step}: {:?}", refreshed.err());
                    continue;
                }
                let error = refreshed.unwrap_err();
                assert_eq!(error.kind, ErrorKind::Config, "{place} {other_place}");
                let expected = "hidden.weight: has other rules attached than these (";
                assert!(error.to_string().starts_with(expected), "{place} {other_place}: {error}");
            }
            let loaded = other.load(Net::new(&Device::flex()), &path);
            if place == other_place {
                assert_eq!(decisions(&loaded.unwrap()).unwrap(), decided);
                continue;
            }
            let error = loaded.unwrap_err().to_string();
            assert!(error.contains("net.bpk: was saved with other rules"), "{place} {other_place}: {error}");
            let of_burn = other.attach(Net::new(&Device::flex())).unwrap().try_load_file(&path);
            assert!(of_burn.is_err(), "{place} {other_place}: burn loads it");
        }
        // After all refusals, the export still equals the effective weights.
        let out = dir.path().join(format!("out-{place}"));
        Export::to(&out).write(&attached).unwrap();
    }
}

#[test]
fn rules_for_more_or_fewer_parameters_are_refused() {
    let net = Net::new(&Device::flex());
    let (one, two) = (pruned(half()), pruned(Prune::new("h*.weight", 0.5).unwrap()));
    let error = two.refresh(one.attach(net.clone()).unwrap(), 1).unwrap_err().to_string();
    assert_eq!(error, "head.weight: no rules are attached; call attach() before training");
    let error = one.refresh(two.attach(net.clone()).unwrap(), 1).unwrap_err().to_string();
    assert!(error.starts_with("head.weight: has rules attached, but these rules do not match it"), "{error}");
    let none = Compression::new();
    assert!(none.refresh(net.clone(), 1).is_ok(), "empty rules need nothing attached");
    assert!(none.refresh(one.attach(net).unwrap(), 1).is_err());
}

#[test]
fn modules_without_attached_rules_are_refused_with_any_schedule() {
    let net = Net::new(&Device::flex());
    let schedules =
        [Schedule::once(), Schedule::linear(100..200), Schedule::constant(5..6), Schedule::cubic(0..9).every(4)];
    for schedule in schedules {
        let both = [
            pruned(half().on(schedule)),
            Compression::new().quantize(Quantize::new("hidden.weight", "int8").unwrap().on(schedule)),
        ];
        for (rules, step) in both.iter().flat_map(|rules| [0, 1, 3, 500].map(|step| (rules, step))) {
            let error = rules.refresh(net.clone(), step).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Config);
            assert!(
                error.to_string().starts_with("hidden.weight: no rules are attached"),
                "{schedule:?} {step}: {error}"
            );
        }
    }
    let attached = pruned(half()).attach(net).unwrap().materialize();
    assert!(pruned(half()).refresh(attached, 1).is_err(), "materialized modules have no rules");
}

/// Returns a record without the tensors for rules, as older versions saved it.
fn old_record(net: &Net, path: &std::path::Path) -> ModuleRecord {
    let fields = r"(weight|bias|\.form|\.dropped|\.scale|\.zero)$";
    net.clone().into_record_group(ParamGroup::from_regex(fields).unwrap()).save(path).unwrap();
    ModuleRecord::load(path).unwrap()
}

#[test]
fn older_records_load_unless_they_contradict_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.bpk");
    let net = Net::new(&Device::flex());
    let rules = pruned(half()).quantize(Quantize::new("h*.weight", "int4-g4").unwrap());
    let saved = rules.attach(net.clone()).unwrap();
    let record = old_record(&saved, &path);
    for loaded in [
        rules.load(Net::new(&Device::flex()), &path).unwrap(),
        load_record(rules.attach(Net::new(&Device::flex())).unwrap(), record.clone()).unwrap(),
    ] {
        assert_eq!(decisions(&loaded).unwrap(), decisions(&saved).unwrap());
        assert_eq!(values(loaded.hidden.weight.val()), values(saved.hidden.weight.val()));
    }
    // A mask of half the weights that is not 2:4.
    let two_of_four =
        pruned(Prune::n_of_m("hidden.weight", 2, 4).unwrap()).quantize(Quantize::new("h*.weight", "int4-g4").unwrap());
    let error = two_of_four.load(Net::new(&Device::flex()), &path).unwrap_err().to_string();
    assert!(error.contains("hidden.weight: was saved with other rules than prune 2:4"), "{error}");
    let other_scheme = pruned(half()).quantize(Quantize::new("h*.weight", "int3-g4").unwrap());
    let error = other_scheme.load(Net::new(&Device::flex()), &path).unwrap_err().to_string();
    assert!(error.contains("was saved with other rules"), "{error}");
    // A record that lacks other tensors is not an older record.
    let partial = record.allow_partial(false);
    let more = rules.prune(Prune::new("conv.weight", 0.5).unwrap());
    assert!(load_record(more.attach(Net::new(&Device::flex())).unwrap(), partial).is_err());
}
