use briquette_formats::Checkpoint;
use briquette_graph::{Extents, graph_of};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n = |at: usize| args[at].parse::<usize>().unwrap();
    let extents = Extents { batch: n(1), tokens: n(2), image: [n(3), n(4)] };
    for dir in &args[5..] {
        let checkpoint = Checkpoint::open(std::path::Path::new(dir)).unwrap();
        let out = std::path::Path::new(dir).join("graph.json");
        match graph_of(&checkpoint, extents) {
            Ok(Some(graph)) => {
                let shapes = graph.lower().unwrap().shapes;
                let value = serde_json::json!({"graph": graph, "shapes": shapes[..graph.values.len()]});
                std::fs::write(out, value.to_string()).unwrap();
            }
            Ok(None) => {
                let _ = std::fs::remove_file(out);
                println!("{dir}: no family");
            }
            Err(error) => {
                let _ = std::fs::remove_file(out);
                println!("{dir}: {error}");
            }
        }
    }
}
