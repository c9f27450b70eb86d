//! CUDA C++ as `cubecl-cpp` writes it, changed where a C++ compiler cannot take it. Lines stay where they are.

use super::cuda::CudaSource;

/// A file for `c++`, with `emulator/` among its include directories.
///
/// # Panics
/// If the kernel has inline PTX or a header that the emulator does not know.
pub(crate) fn to_cpp(source: &CudaSource) -> String {
    let body: Vec<String> = source.text.lines().map(line_to_cpp).collect();
    let name = &source.name;
    format!(
        "#include \"half.h\"\n\
         namespace emulator {{ namespace device {{\n\
         #line 1 \"{name}.cu\"\n\
         {}\n\
         }} }}\n\
         using Signature = decltype(emulator::parameters_of(&emulator::device::{name}));\n\
         static void call(void** values) {{\n\
         Signature::call(&emulator::device::{name}, values, std::make_index_sequence<Signature::count>());\n\
         }}\n\
         extern \"C\" __attribute__((visibility(\"default\"))) int briquette_launch(const emulator::Launch* launch) {{\n\
         return emulator::run(*launch, Signature::count, Signature::bytes, call);\n\
         }}\n\
         extern \"C\" __attribute__((visibility(\"default\"))) size_t briquette_element_bytes(size_t i) {{\n\
         return i < Signature::count ? Signature::element_bytes[i] : 0;\n\
         }}\n",
        body.join("\n")
    )
}

fn line_to_cpp(line: &str) -> String {
    if let Some(header) = line.strip_prefix("#include <") {
        let known = ["cuda_fp16.h>", "cuda_bf16.h>"];
        assert!(known.contains(&header.trim()), "the emulator has no {line}");
        return String::new();
    }
    let mut line = line.to_string();
    if let Some(at) = line.find("asm") {
        line = [&line[..at], &assembly(&line[at..])].concat();
    }
    if let Some(begin) = line.find("extern __shared__") {
        let end = begin + line[begin..].find(';').expect("a declaration ends");
        let name = line[begin..end].split_whitespace().last().unwrap_or_default().trim_end_matches("[]").to_string();
        line.replace_range(begin..end, &format!("char* const {name} = ::emulator::shared_memory()"));
    }
    line = line.replace("{ return data[i]; }", "{ ::emulator::check_index(i, N); return data[i]; }");
    for integer in ["int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"] {
        line = line.replace(&format!("= {integer}("), &format!("= ::emulator::to_integer<{integer}>("));
    }
    line
}

/// `asm volatile("mma.sync...;" : "=r"(d0), .. : "r"(a0), .. );` as a call of the emulator's function.
fn assembly(statement: &str) -> String {
    let mut quoted = statement.split('"').skip(1).step_by(2);
    let ptx = quoted.next().unwrap_or_default();
    let signs = match ptx.split(' ').next().unwrap_or_default() {
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => "true, true",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" => "false, true",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32" => "true, false",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32" => "false, false",
        _ => panic!("the emulator has no {ptx}"),
    };
    let registers = "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};";
    assert!(ptx.ends_with(registers), "the emulator expects other registers than those of {ptx}");
    let operands: Vec<&str> = statement.split('"').skip(4).step_by(2).filter_map(operand).collect();
    assert_eq!(operands.len(), 14, "operands of {statement}");
    format!("::emulator::mma_m16n8k32<{signs}>(__LINE__, {});", operands.join(", "))
}

/// `x` of `(x), `
fn operand(text: &str) -> Option<&str> {
    text.strip_prefix('(')?.split_once(')').map(|(operand, _)| operand)
}
