//! The command line of onceonly.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
