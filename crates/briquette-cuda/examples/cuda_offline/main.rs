//! Compiles every kernel for every generation of NVIDIA devices, without a device: `cuda_offline WHEELS
//! [NAME [GENERATIONS]]`.
//!
//! WHEELS is the directory into which pip installed `nvidia-cuda-nvrtc-cu12`, `nvidia-cuda-nvcc-cu12`,
//! `nvidia-cuda-runtime-cu12` and `nvidia-cuda-cccl-cu12`. NAME limits the run to kernels whose name contains
//! it, GENERATIONS to some compute capabilities: `75,90`. A kernel fails if a compiler refuses it, if it lacks the instruction that it is written for, or if it
//! stores more than 32 bytes of a thread outside registers. Exits with 1 if a kernel fails.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program prints its results")]

mod nvrtc;
mod ptxas;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvrtc::Nvrtc;
use ptxas::{Ptxas, Usage};
use support::cuda::Gpu;
use support::registry::{Instruction, kernels};

/// Turing to Blackwell.
const GENERATIONS: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];
/// The generation with its own columns in the table.
const SHOWN: u32 = 90;
/// The first generation with these matrix instructions.
const FIRST_WITH_MATRICES: u32 = 80;
const MATRICES: &str = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32";
const WARPGROUPS: &str = "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8";
const FLOAT_MATRICES: &str = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32";
const DOTS: &str = "dp4a.s32.s32";
/// Bytes of a thread outside registers. ptxas keeps one or two numbers there if that lets more blocks run together.
const MOST_STACK: usize = 32;
/// Static shared memory of a block. More has to be requested at launch, as CubeCL does for dynamic shared memory.
const STATIC_SHARED: usize = 48 << 10;

/// A kernel for one generation.
struct Job {
    generation: u32,
    name: String,
    uses: Instruction,
    cuda: String,
    launch_shared: usize,
}

struct Compilers {
    nvrtc: Nvrtc,
    ptxas: Ptxas,
    includes: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (wheels, name) = (arguments.next().unwrap_or_else(|| "bench-out/cuda".into()), arguments.next());
    let only = arguments.next().unwrap_or_default();
    let Some(generations) = selected(&only) else {
        eprintln!("found generations {only:?}, expected some of {GENERATIONS:?}");
        return ExitCode::FAILURE;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let compilers = match Compilers::find(Path::new(&wheels), folder.path()) {
        Ok(compilers) => compilers,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let name = name.unwrap_or_default();
    let jobs: Vec<Job> = generations.iter().flat_map(|generation| jobs(*generation, &name)).collect();
    let results = compilers.compile_all(&jobs);
    let (mut failures, mut table) = (Vec::new(), BTreeMap::new());
    for (job, result) in jobs.iter().zip(results) {
        match result {
            Ok(Some(usage)) => enter(&mut table, job, usage),
            Ok(None) => {}
            Err(error) => {
                let error = error.lines().find(|line| line.contains("error")).unwrap_or(&error);
                failures.push(format!("{} for sm_{}: {error}", job.name, job.generation));
            }
        }
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    print_table(&table);
    println!("{} kernels compiled for {} generations, {} failed", jobs.len(), generations.len(), failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the generations of a list such as `75,90`, or all for an empty list; `None` if one is unknown.
fn selected(list: &str) -> Option<Vec<u32>> {
    if list.is_empty() {
        return Some(GENERATIONS.to_vec());
    }
    list.split(',').map(|one| GENERATIONS.into_iter().find(|known| known.to_string() == one)).collect()
}

/// Returns the kernels whose names contain `part`.
fn jobs(generation: u32, part: &str) -> Vec<Job> {
    let gpu = Gpu::sm(generation);
    assert_eq!(gpu.has_int8_matrices(), generation >= FIRST_WITH_MATRICES, "int8 matrices on sm_{generation}");
    let listed = kernels(gpu).into_iter().filter(|listed| listed.name.contains(part));
    let job = |listed: support::registry::Listed| {
        let source = gpu.source(&*listed.kernel);
        let (cuda, launch_shared) = (source.text, source.shared_bytes);
        Job { generation, name: listed.name, uses: listed.uses, cuda, launch_shared }
    };
    listed.map(job).collect()
}

/// The maximum usage of each kernel, and its usage on the shown generation.
type Table = BTreeMap<String, (Usage, Usage)>;

fn enter(table: &mut Table, job: &Job, usage: Usage) {
    let (most, shown) = table.entry(job.name.clone()).or_default();
    *most = most.max(usage);
    if job.generation == SHOWN {
        *shown = usage;
    }
}

fn print_table(table: &Table) {
    println!("{:56} registers: most, sm_{SHOWN}a  shared memory  spills", "kernel");
    for (name, (most, shown)) in table {
        let shared = most.static_shared + most.launch_shared;
        println!("{name:56} {:>15} {:>7} {shared:>14} {:>7}", most.registers, shown.registers, most.spills);
    }
}

impl Compilers {
    fn find(wheels: &Path, folder: &Path) -> Result<Self, String> {
        let packages = wheels.join("nvidia");
        let library = packages.join("cuda_nvrtc/lib/libnvrtc.so.12");
        let nvrtc = Nvrtc::load(&library).map_err(|error| error.to_string())?;
        let program = packages.join("cuda_nvcc/bin/ptxas");
        if !program.is_file() {
            return Err(format!("{} does not exist", program.display()));
        }
        let includes = ["cuda_runtime", "cuda_nvcc", "cuda_cccl"].map(|name| packages.join(name).join("include"));
        Ok(Self { nvrtc, ptxas: Ptxas { program, folder: folder.into() }, includes: includes.into() })
    }

    /// Runs all jobs with as many threads as there are processors.
    fn compile_all(&self, jobs: &[Job]) -> Vec<Result<Option<Usage>, String>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new((0..jobs.len()).map(|_| Ok(None)).collect::<Vec<_>>());
        let work = || {
            while let Some((i, job)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, jobs.get(i)?)))
            {
                let result = self.compile(job);
                results.lock().expect("no thread has panicked")[i] = result;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
        results.into_inner().expect("no thread has panicked")
    }

    /// Compiles a kernel and returns its usage, or `None` if it is refused as expected.
    fn compile(&self, job: &Job) -> Result<Option<Usage>, String> {
        // The options that `cubecl-cuda` passes.
        let suffix = if job.generation >= 90 { "a" } else { "" };
        let arch = format!("sm_{}{suffix}", job.generation);
        let mut options = vec![format!("--gpu-architecture={arch}"), "-lineinfo".into()];
        options.extend(self.includes.iter().map(|path| format!("--include-path={}", path.display())));
        let ptx = self.nvrtc.to_ptx(&job.cuda, &options);
        let shape = match job.uses {
            Instruction::Matrices => Some("m16n8k32"),
            Instruction::FloatMatrices => Some("m16n8k8"),
            _ => None,
        };
        if let Some(shape) = shape.filter(|_| job.generation < FIRST_WITH_MATRICES) {
            return match ptx {
                Err(error) if error.contains(shape) => Ok(None),
                Err(error) => Err(format!("refused, but not because of its instruction: {error}")),
                Ok(_) => Err("not refused".into()),
            };
        }
        let ptx = ptx?;
        let instruction = match job.uses {
            Instruction::Matrices => MATRICES,
            Instruction::FloatMatrices => FLOAT_MATRICES,
            Instruction::Warpgroups => WARPGROUPS,
            Instruction::Dots => DOTS,
            Instruction::Plain => "",
        };
        if !ptx.contains(instruction) {
            return Err(format!("has no {instruction}"));
        }
        let usage = self.ptxas.usage(&ptx, &arch, &job.name, job.launch_shared)?;
        if usage.stack > MOST_STACK {
            return Err(format!("{} bytes of stack, {} of spills", usage.stack, usage.spills));
        }
        if usage.static_shared > STATIC_SHARED {
            return Err(format!(
                "{} bytes of static shared memory, expected at most {STATIC_SHARED}",
                usage.static_shared
            ));
        }
        Ok(Some(usage))
    }
}
