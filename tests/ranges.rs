//! Every number of a recipe has a range in the schema; a value outside it is refused with its key.

use crate::sandbox::Sandbox;
use serde_json::Value;

/// Returns each number of the schema: its path, with `*` for any name, and its node.
fn numbers(schema: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    collect(schema, schema, "", &mut found);
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.dedup();
    found
}

fn collect(schema: &Value, node: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if let Some(other) = node["$ref"].as_str() {
        return collect(schema, schema.pointer(other.trim_start_matches('#')).unwrap(), path, found);
    }
    let is = |kind: &Value| kind == "number" || kind == "integer";
    if is(&node["type"]) || node["type"].as_array().is_some_and(|kinds| kinds.iter().any(is)) {
        found.push((path.to_string(), node.clone()));
    }
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    for (key, node) in node["properties"].as_object().into_iter().flatten() {
        collect(schema, node, &below(key), found);
    }
    collect_if_there(schema, &node["items"], &format!("{path}.0"), found);
    collect_if_there(schema, &node["additionalProperties"], &below("any"), found);
    for key in ["anyOf", "oneOf", "allOf"] {
        node[key].as_array().into_iter().flatten().for_each(|node| collect(schema, node, path, found));
    }
}

fn collect_if_there(schema: &Value, node: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if node.is_object() {
        collect(schema, node, path, found);
    }
}

/// Returns a recipe with one value at a path: in a stage of its own, or in a table.
fn recipe(path: &str, value: &str) -> String {
    let head = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n";
    let mut steps: Vec<&str> = path.split('.').collect();
    let is_stage = steps[0] == "stage";
    steps.drain(..if is_stage { 2 } else { 0 });
    let mut value = value.to_string();
    // From the inside out: an index of a list, or a key of a table.
    while steps.len() > 1 {
        let step = steps.pop().unwrap();
        value = if step == "0" { format!("[{value}]") } else { format!("{{ \"{step}\" = {value} }}") };
        // Required keys of list items.
        let needed = match (steps[0], steps[steps.len() - 1]) {
            ("loss", "0") => "{ kind = \"logits\", ",
            ("overrides", "0") => "{ include = [\"**\"], ",
            _ => "{ ",
        };
        value = value.replacen("{ ", needed, usize::from(step != "0"));
    }
    match is_stage {
        true => format!("{head}[[stage]]\nkind = \"prune\"\n{} = {value}\n", steps[0]),
        false => format!("{} = {value}\n{head}", steps[0]),
    }
}

/// Returns values outside of every range, and values just beyond the bounds of this key.
fn bad_values(node: &Value) -> Vec<String> {
    let number = |key: &str| node[key].as_f64();
    let (low, high) = (number("minimum"), number("maximum"));
    let mut values: Vec<String> = ["nan", "inf", "-inf", "-nan"].map(str::to_string).into();
    let is_whole = node["type"] == "integer" || node["type"].to_string().contains("integer");
    let write = |value: f64| if is_whole { format!("{value:.0}") } else { format!("{value:?}") };
    // f32 cannot represent a bound plus one above 1e15.
    let is_fine = |bound: f64| is_whole && bound < 1e15;
    values.extend(low.map(|low| write(if is_fine(low) { low - 1.0 } else { low - low.abs() - 1.0 })));
    values.extend(number("exclusiveMinimum").map(write));
    values.extend(high.map(|high| write(if is_fine(high) { high + 1.0 } else { high * 2.0 + 1.0 })));
    values.extend(number("exclusiveMaximum").map(write));
    if low.or(number("exclusiveMinimum")).is_some_and(|low| low > -1.0) {
        values.push("-1".into());
    }
    values
}

#[test]
fn every_number_of_the_schemas_has_bounds() {
    let sandbox = Sandbox::new();
    for line in ["recipe schema", "recipe schema jobs"] {
        let found = numbers(&sandbox.json(line));
        assert!(found.len() >= 40, "{line}: {}", found.len());
        for (path, node) in found {
            let has = |names: [&str; 2]| names.iter().any(|name| node[*name].is_number());
            assert!(has(["minimum", "exclusiveMinimum"]) && has(["maximum", "exclusiveMaximum"]), "{path}: {node}");
        }
    }
}

#[test]
fn every_number_out_of_range_is_refused_by_key_and_value() {
    let sandbox = Sandbox::new();
    for (path, node) in numbers(&sandbox.json("recipe schema")) {
        let key = path.split('.').rfind(|step| *step != "0").unwrap();
        for value in bad_values(&node) {
            sandbox.write("r.toml", recipe(&path, &value));
            for line in ["plan r.toml", "run r.toml"] {
                let outcome = sandbox.run(line);
                outcome.assert_fails(2, &["r.toml:", key, "found ", "expected a "]);
                let is_named = forms(&value).iter().any(|form| outcome.stderr.contains(form));
                assert!(is_named, "{path} = {value}: {}", outcome.stderr);
            }
        }
    }
}

/// Returns the forms of a number that errors may print: as written, with an exponent, or as the nearest f32.
fn forms(value: &str) -> [String; 3] {
    let (long, short) = (value.parse::<f64>().unwrap(), value.parse::<f32>().unwrap());
    [value.trim_end_matches(".0").to_string(), format!("{long:e}"), short.to_string()]
}

#[test]
fn nan_and_infinity_are_refused_in_a_matrix_and_in_a_set() {
    let sandbox = Sandbox::new();
    let base = "[base.model]\npath = \"m\"\n[base.output]\npath = \"o/{stage.0.sparsity}\"\n[[base.stage]]\nkind = \"prune\"\n";
    let job = "[job.model]\npath = \"m\"\n[job.output]\npath = \"o\"\n[[job.stage]]\nkind = \"prune\"\n";
    for value in ["nan", "inf", "-inf", "+nan"] {
        let cases = [
            (format!("{base}[matrix]\n\"stage.0.sparsity\" = [0.5, {value}]\n"), "matrix.stage.0.sparsity"),
            (format!("{base}[matrix]\nstage.0.sparsity = [{value}]\n"), "matrix.stage.0.sparsity"),
            (format!("[[job]]\nset.\"stage.0.sparsity\" = {value}\n{job}"), "job 1: set.stage.0.sparsity"),
            (format!("[[job]]\nset = {{ stage.0.sparsity = {value} }}\n{job}"), "job 1: set.stage.0.sparsity"),
            (format!("[[job]]\n{job}sparsity = {value}\n"), "job 1: stage 1 (prune): sparsity"),
        ];
        for (text, place) in cases {
            sandbox.write("jobs.toml", &text);
            for line in ["plan jobs.toml", "run jobs.toml"] {
                sandbox
                    .run(line)
                    .assert_fails(2, &["jobs.toml:", place, &format!("found {value}"), "expected a number from 0"]);
            }
        }
    }
    assert_eq!(sandbox.names(), ["jobs.toml"], "a job was started");
}

#[test]
fn a_plan_names_the_job_out_of_range_and_lists_the_others() {
    let sandbox = Sandbox::with("digits");
    sandbox.write(
        "jobs.toml",
        "[base.model]\npath = \"digits\"\n[base.output]\npath = \"o/{stage.0.sparsity}\"\n[[base.stage]]\nkind = \"prune\"\n\
         [matrix]\n\"stage.0.sparsity\" = [0.5, 1.0]\n",
    );
    let plan = sandbox.run("plan jobs.toml");
    assert_eq!(plan.code, 3, "{}", plan.stderr);
    assert!(plan.stdout.contains("sparsity: found 1, expected a number from 0 to below 1"), "{}", plan.stdout);
}

#[test]
fn a_string_without_quotes_gets_a_hint() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "r.toml",
        "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\nkind = \"quantize\"\nscheme = int8\n",
    );
    sandbox.run("plan r.toml").assert_fails(2, &["r.toml:7: found int8", "put strings in quotes: \"int8\""]);
}
