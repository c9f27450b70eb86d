//! `graph`: prints the network of a model.

use super::choice::ChoiceArgs;
use super::common::Common;
use super::graph_tables;
use super::options::options;
use super::show::show_long;
use super::values::{at_least_one, parse_dim, parse_image};
use briquette::Result;
use briquette::pipeline::graph::{Extents, GraphDetail, GraphRequest, InputDims, graph as run};
use clap::Args;
use std::path::{Path, PathBuf};

/// Flags that select the parts of a graph to print, and the sizes of its inputs.
#[derive(Debug, Clone, Args)]
pub(crate) struct GraphArgs {
    /// List every node; by default, equal blocks are listed once
    #[arg(long)]
    all: bool,
    /// Show the primitive operations that nodes expand to
    #[arg(long)]
    lowered: bool,
    /// Show coupling groups: channels, heads and experts that can only be removed together
    #[arg(long)]
    groups: bool,
    /// Write a page with the graph as a figure
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace the page if it exists
    #[arg(long)]
    force: bool,
    /// Number of items in a batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    batch: usize,
    /// Number of tokens of each text, cut to the longest input of the model
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one())]
    tokens: usize,
    /// Height and width of images, for networks that take any
    #[arg(long, value_name = "HxW", default_value = "224x224", value_parser = parse_image)]
    image: [usize; 2],
    /// An extent that an ONNX model names, such as batch=1; may be repeated
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dim)]
    dims: Vec<(String, usize)>,
    /// Which entry of the file is the model
    #[command(flatten)]
    choice: ChoiceArgs,
}

impl GraphArgs {
    /// Returns the page.
    pub(super) fn page(&self) -> Option<&Path> {
        self.html.as_deref()
    }
}

/// Prints the graph of a model, and writes its page.
pub(super) fn graph(common: &Common, model: &Path, what: &GraphArgs) -> Result<u8> {
    let request = GraphRequest {
        model: model.to_path_buf(),
        choice: what.choice.choice(),
        dims: InputDims {
            named: what.dims.iter().cloned().collect(),
            extents: Extents { batch: what.batch, tokens: what.tokens, image: what.image },
            ..InputDims::default()
        },
        detail: GraphDetail { is_lowered: what.lowered, with_groups: what.groups, is_unfolded: what.all },
        page: what.html.clone(),
    };
    let found = run(&request, &options(common, what.force)?)?;
    show_long(common, &found, |out| {
        match (&found.coupling, what.lowered) {
            (Some(coupling), false) => graph_tables::groups(out, coupling, &found.weights, what.all)?,
            (Some(coupling), true) => {
                graph_tables::nodes(out, &found.diagram)?;
                writeln!(out)?;
                graph_tables::groups(out, coupling, &found.weights, what.all)?;
            }
            (None, _) => graph_tables::nodes(out, &found.diagram)?,
        }
        graph_tables::totals(out, &found, what.html.as_deref())
    })
}
