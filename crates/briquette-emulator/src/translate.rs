//! Translation of CUDA C++ from `cubecl-cpp` to C++. Line numbers stay the same.

/// Returns a source file for a C++ compiler, with `cpp/` among its include directories.
///
/// # Errors
/// The source has a construct that cannot be translated.
pub fn to_cpp(cuda: &str) -> Result<String, String> {
    let name = function_name(cuda).ok_or("no __global__ function with a name after its launch bounds")?;
    let body = cuda.lines().map(line_to_cpp).collect::<Result<Vec<_>, _>>()?.join("\n");
    Ok(format!(
        "#include \"half.h\"\n\
         namespace emulator {{ namespace device {{\n\
         #line 1 \"{name}.cu\"\n\
         {body}\n\
         }} }}\n\
         using Signature = decltype(emulator::parameters_of(&emulator::device::{name}));\n\
         static void call(void** values) {{\n\
         Signature::call(&emulator::device::{name}, values, std::make_index_sequence<Signature::count>());\n\
         }}\n\
         #define BRIQUETTE_EXPORT extern \"C\" __attribute__((visibility(\"default\")))\n\
         BRIQUETTE_EXPORT int briquette_launch(emulator::Launch* launch) {{ return emulator::run(*launch, call); }}\n\
         BRIQUETTE_EXPORT size_t briquette_parameter_bytes(size_t i) {{\n\
         return i < Signature::count ? Signature::bytes[i] : 0;\n\
         }}\n\
         BRIQUETTE_EXPORT size_t briquette_element_bytes(size_t i) {{\n\
         return i < Signature::count ? Signature::element_bytes[i] : 0;\n\
         }}\n"
    ))
}

/// Returns the kernel's name.
fn function_name(cuda: &str) -> Option<&str> {
    let signature = cuda.split("__global__").nth(1)?;
    signature.split('(').nth(1)?.split_whitespace().last()
}

fn line_to_cpp(line: &str) -> Result<String, String> {
    if let Some(header) = line.strip_prefix("#include <") {
        let known = ["cuda_fp16.h>", "cuda_bf16.h>"];
        return if known.contains(&header.trim()) {
            Ok(String::new())
        } else {
            Err(format!("the emulator does not support {line}"))
        };
    }
    let mut line = line.to_string();
    while let Some(at) = ["asm volatile(", "asm ("].iter().find_map(|begin| line.find(begin)) {
        let end = at + line[at..].find(");").ok_or_else(|| format!("unterminated assembly: {line}"))? + 2;
        line.replace_range(at..end, &assembly(&line[at..end])?);
    }
    if let Some(begin) = line.find("extern __shared__") {
        let end = begin + line[begin..].find(';').ok_or("unterminated declaration")?;
        let name = line[begin..end].split_whitespace().last().unwrap_or_default().trim_end_matches("[]").to_string();
        line.replace_range(begin..end, &format!("char* const {name} = ::emulator::shared_memory()"));
    }
    line = line.replace("{ return data[i]; }", "{ ::emulator::check_index(i, N); return data[i]; }");
    for integer in ["int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"] {
        line = line.replace(&format!("= {integer}("), &format!("= ::emulator::to_integer<{integer}>("));
    }
    Ok(line)
}

/// The registers of the supported matrix products.
const MMA_REGISTERS: &str = "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};";

/// Translates `asm volatile("mma.sync...;" : "=r"(d0), .. : "r"(a0), .. );` to a call of the emulator's
/// function.
fn assembly(statement: &str) -> Result<String, String> {
    let ptx = statement.split('"').nth(1).unwrap_or_default();
    let operands: Vec<&str> = statement.split('"').skip(4).step_by(2).filter_map(operand).collect();
    let unknown = || Err(format!("the emulator does not support {ptx}"));
    let (name, registers) = ptx.split_once(' ').unwrap_or_default();
    if let Some(name) = name.strip_prefix("atom.relaxed.") {
        let (operation, of) = name.split_once('.').unwrap_or_default();
        let of = match of {
            "f32" => "float",
            "f64" => "double",
            "s32" => "int",
            "u32" => "unsigned",
            "s64" => "long long",
            "u64" => "unsigned long long",
            _ => return unknown(),
        };
        let [out, pointer, value] = operands[..] else { return unknown() };
        return Ok(format!("{out} = ::emulator::atomic_{operation}<{of}>((void*)({pointer}), {value});"));
    }
    if name == "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
        && registers == MMA_REGISTERS
        && operands.len() == 14
    {
        return Ok(format!("::emulator::mma_m16n8k8(__LINE__, {});", operands.join(", ")));
    }
    let signs = match name {
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => "true, true",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" => "false, true",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32" => "true, false",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32" => "false, false",
        _ => return unknown(),
    };
    if registers != MMA_REGISTERS || operands.len() != 14 {
        return unknown();
    }
    Ok(format!("::emulator::mma_m16n8k32<{signs}>(__LINE__, {});", operands.join(", ")))
}

/// Returns `x` of `(x), `
fn operand(text: &str) -> Option<&str> {
    text.strip_prefix('(')?.split_once(')').map(|(operand, _)| operand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembly_becomes_calls_and_unknown_assembly_an_error() {
        let add =
            r#"{ float result; asm volatile("atom.relaxed.add.f32 %0, [%1], %2;" : "=f"(result) : "l"(p), "f"(v) ); }"#;
        let expected = "{ float result; result = ::emulator::atomic_add<float>((void*)(p), v); }";
        assert_eq!(line_to_cpp(add).unwrap(), expected);
        assert!(
            line_to_cpp(&add.replace("add", "add.noftz")).unwrap_err().contains("the emulator does not support atom")
        );
        assert!(line_to_cpp("#include <mma.h>").is_err());
        assert_eq!(line_to_cpp("#include <cuda_fp16.h>").unwrap(), "");
    }
}
