//! Compresses the tokenizer's table: 32 MB as the library has it, 16 MB in the program.

use std::{env, error::Error, fs, path::Path};

/// Higher levels gain a twentieth and take minutes, because build scripts are not optimised.
const LEVEL: i32 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let table = rmp_serde::to_vec(&bpe_openai::o200k_base().bpe)?;
    let to = Path::new(&env::var("OUT_DIR")?).join("o200k_base.zst");
    fs::write(to, zstd::encode_all(table.as_slice(), LEVEL)?)?;
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
