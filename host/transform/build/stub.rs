//! What stands in for WASI in guests of C and Go: every function of its preview 1, answered without a host.
//! Never imports anything but the contract's log, so that what a language's library calls cannot become an import.
//! `module` makes a small core module that wit-component links beside the guest's; its shape is that of an "adapter".

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType, ImportSection,
    InstructionSink, MemArg, MemoryType, Module, TypeSection, ValType,
};

/// The module's name in a guest's imports.
pub(super) const NAME: &str = "wasi_snapshot_preview1";

/// The world that the stub is written against.
pub(super) const WORLD: &str = "package restitch:stub@1.0.0;\nworld stub { import restitch:transform/log@1.0.0; }\n";

/// Error numbers of preview 1: 0 is success.
const EBADF: i32 = 8;
const EINVAL: i32 = 28;
const ENOSYS: i32 = 52;

/// 2001-09-09T01:46:40Z in nanoseconds: where the clock starts. It goes on by a microsecond each time it is read.
const CLOCK_START_NS: i64 = 1_000_000_000_000_000_000;
const CLOCK_STEP_NS: i64 = 1_000;
/// Where the generator of numbers starts, and the steps of SplitMix64.
const SEED: i64 = 0x7265_7374_6974_6368;
const GAMMA: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;
const MIX: [i64; 2] = [0xbf58_476d_1ce4_e5b9_u64 as i64, 0x94d0_49bb_1331_11eb_u64 as i64];

/// Levels of the log.
const DEBUG: i32 = 0;
const ERROR: i32 = 3;

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

/// Functions that say one thing whatever they are asked: their parameters and the error they return.
#[rustfmt::skip]
const REFUSED: [(&str, &[ValType], i32); 36] = [
    ("fd_advise", &[I32, I64, I64, I32], EBADF),
    ("fd_allocate", &[I32, I64, I64], EBADF),
    ("fd_close", &[I32], EBADF),
    ("fd_datasync", &[I32], EBADF),
    ("fd_fdstat_set_flags", &[I32, I32], EBADF),
    ("fd_fdstat_set_rights", &[I32, I64, I64], EBADF),
    ("fd_filestat_get", &[I32, I32], EBADF),
    ("fd_filestat_set_size", &[I32, I64], EBADF),
    ("fd_filestat_set_times", &[I32, I64, I64, I32], EBADF),
    ("fd_pread", &[I32, I32, I32, I64, I32], EBADF),
    // The search for folders that were opened beforehand ends with it.
    ("fd_prestat_get", &[I32, I32], EBADF),
    ("fd_prestat_dir_name", &[I32, I32, I32], EBADF),
    ("fd_pwrite", &[I32, I32, I32, I64, I32], EBADF),
    ("fd_read", &[I32, I32, I32, I32], EBADF),
    ("fd_readdir", &[I32, I32, I32, I64, I32], EBADF),
    ("fd_renumber", &[I32, I32], EBADF),
    ("fd_seek", &[I32, I64, I32, I32], EBADF),
    ("fd_sync", &[I32], EBADF),
    ("fd_tell", &[I32, I32], EBADF),
    ("path_create_directory", &[I32, I32, I32], EBADF),
    ("path_filestat_get", &[I32, I32, I32, I32, I32], EBADF),
    ("path_filestat_set_times", &[I32, I32, I32, I32, I64, I64, I32], EBADF),
    ("path_link", &[I32, I32, I32, I32, I32, I32, I32], EBADF),
    ("path_open", &[I32, I32, I32, I32, I32, I64, I64, I32, I32], EBADF),
    ("path_readlink", &[I32, I32, I32, I32, I32, I32], EBADF),
    ("path_remove_directory", &[I32, I32, I32], EBADF),
    ("path_rename", &[I32, I32, I32, I32, I32, I32], EBADF),
    ("path_symlink", &[I32, I32, I32, I32, I32], EBADF),
    ("path_unlink_file", &[I32, I32, I32], EBADF),
    ("proc_raise", &[I32], ENOSYS),
    ("sched_yield", &[], 0),
    ("sock_accept", &[I32, I32, I32], EBADF),
    ("sock_recv", &[I32, I32, I32, I32, I32, I32], EBADF),
    ("sock_send", &[I32, I32, I32, I32, I32], EBADF),
    ("sock_shutdown", &[I32, I32], EBADF),
    ("args_get", &[I32, I32], 0),
];

/// Functions that do something: their parameters, their number of results, and the code.
type Written = (&'static str, &'static [ValType], usize, fn() -> Function);
const WRITTEN: [Written; 10] = [
    ("args_sizes_get", &[I32, I32], 1, none_of_them),
    ("environ_get", &[I32, I32], 1, variables),
    ("environ_sizes_get", &[I32, I32], 1, variable_sizes),
    ("clock_res_get", &[I32, I32], 1, clock_resolution),
    ("clock_time_get", &[I32, I64, I32], 1, clock_time),
    ("fd_fdstat_get", &[I32, I32], 1, describe_file),
    ("fd_write", &[I32, I32, I32, I32], 1, write),
    ("poll_oneoff", &[I32, I32, I32, I32], 1, poll),
    ("proc_exit", &[I32], 0, exit),
    ("random_get", &[I32, I32], 1, random),
];

/// Functions before those of the module: the log.
const IMPORTED: u32 = 1;
const LOG: u32 = 0;
const CLOCK: u32 = 0;
const NUMBERS: u32 = 1;

/// Returns the stub as a core module.
pub(super) fn module() -> Vec<u8> {
    let (mut types, mut functions, mut exports, mut code) = (TypeSection::new(), FunctionSection::new(), ExportSection::new(), CodeSection::new());
    types.ty().function([I32, I32, I32], []);
    let refused = REFUSED.into_iter().map(|(name, parameters, errno)| (name, parameters, 1, constant(errno)));
    let written = WRITTEN.into_iter().map(|(name, parameters, results, body)| (name, parameters, results, body()));
    for (name, parameters, results, body) in refused.chain(written) {
        exports.export(name, ExportKind::Func, IMPORTED + functions.len());
        functions.function(types.len());
        types.ty().function(parameters.iter().copied(), std::iter::repeat_n(I32, results));
        code.function(&body);
    }
    let mut imports = ImportSection::new();
    imports.import("restitch:transform/log@1.0.0", "log", EntityType::Function(0));
    let memory = MemoryType { minimum: 0, maximum: None, memory64: false, shared: false, page_size_log2: None };
    imports.import("env", "memory", EntityType::Memory(memory));
    let mut globals = GlobalSection::new();
    for start in [CLOCK_START_NS, SEED] {
        globals.global(GlobalType { val_type: I64, mutable: true, shared: false }, &ConstExpr::i64_const(start));
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&globals).section(&exports).section(&code);
    module.finish()
}

fn at(offset: u64) -> MemArg {
    MemArg { offset, align: 0, memory_index: 0 }
}

fn body(locals: impl IntoIterator<Item = (u32, ValType)>, write: impl FnOnce(&mut InstructionSink<'_>)) -> Function {
    let locals: Vec<_> = locals.into_iter().collect();
    let mut function = Function::new(locals);
    write(&mut function.instructions());
    function.instructions().end();
    function
}

fn constant(errno: i32) -> Function {
    body([], |i| {
        i.i32_const(errno);
    })
}

/// The one variable there is: without it, the Go run-time follows a fatal error with pages on all of its threads,
/// and the log loses the line that says what happened. 17 bytes, the last of them zero.
const VARIABLE: [&[u8; 8]; 2] = [b"GOTRACEB", b"ACK=none"];

/// (places, bytes)
fn variables() -> Function {
    body([], |i| {
        i.local_get(0).local_get(1).i32_store(at(0));
        for (offset, part) in (0..).step_by(8).zip(VARIABLE) {
            i.local_get(1).i64_const(i64::from_le_bytes(*part)).i64_store(at(offset));
        }
        i.local_get(1).i32_const(0).i32_store8(at(16)).i32_const(0);
    })
}

/// (count, bytes)
fn variable_sizes() -> Function {
    body([], |i| {
        i.local_get(0).i32_const(1).i32_store(at(0)).local_get(1).i32_const(17).i32_store(at(0)).i32_const(0);
    })
}

/// (count, bytes): no arguments.
fn none_of_them() -> Function {
    body([], |i| {
        i.local_get(0).i32_const(0).i32_store(at(0)).local_get(1).i32_const(0).i32_store(at(0)).i32_const(0);
    })
}

/// (id, resolution)
fn clock_resolution() -> Function {
    body([], |i| {
        i.local_get(1).i64_const(CLOCK_STEP_NS).i64_store(at(0)).i32_const(0);
    })
}

/// (id, precision, time)
fn clock_time() -> Function {
    body([], |i| {
        i.local_get(2).global_get(CLOCK).i64_store(at(0));
        i.global_get(CLOCK).i64_const(CLOCK_STEP_NS).i64_add().global_set(CLOCK).i32_const(0);
    })
}

/// (fd, stat): 0, 1 and 2 are terminals that can be written, and there is nothing else.
fn describe_file() -> Function {
    body([], |i| {
        i.local_get(0).i32_const(2).i32_gt_u().if_(BlockType::Empty).i32_const(EBADF).return_().end();
        i.local_get(1).i64_const(2).i64_store(at(0)); // file type "character device", no flags
        i.local_get(1).i64_const(1 << 6).i64_store(at(8)); // the right to write
        i.local_get(1).i64_const(0).i64_store(at(16)).i32_const(0);
    })
}

/// (fd, parts, count, written): each part that is printable ASCII becomes a line of the log; others are swallowed.
fn write() -> Function {
    let (fd, part, count, written) = (0, 1, 2, 3);
    let (total, text, length, k, good) = (4, 5, 6, 7, 8);
    body([(5, I32)], |i| {
        i.local_get(fd).i32_const(1).i32_sub().i32_const(1).i32_gt_u().if_(BlockType::Empty).i32_const(EBADF).return_().end();
        i.block(BlockType::Empty).loop_(BlockType::Empty);
        i.local_get(count).i32_eqz().br_if(1);
        i.local_get(part).i32_load(at(0)).local_set(text).local_get(part).i32_load(at(4)).local_set(length);
        i.local_get(total).local_get(length).i32_add().local_set(total);
        // The line ends with its last byte that is no control character.
        i.block(BlockType::Empty).loop_(BlockType::Empty);
        i.local_get(length).i32_eqz().br_if(1);
        i.local_get(text).local_get(length).i32_add().i32_const(1).i32_sub().i32_load8_u(at(0)).i32_const(32).i32_gt_u().br_if(1);
        i.local_get(length).i32_const(1).i32_sub().local_set(length).br(0).end().end();
        // The host traps on text that is not UTF-8, and a part may end in the middle of a character.
        i.i32_const(0).local_set(k).local_get(length).i32_const(0).i32_ne().local_set(good);
        i.block(BlockType::Empty).loop_(BlockType::Empty);
        i.local_get(k).local_get(length).i32_ge_u().br_if(1);
        i.local_get(text).local_get(k).i32_add().i32_load8_u(at(0)).i32_const(0x80).i32_ge_u();
        i.if_(BlockType::Empty).i32_const(0).local_set(good).end();
        i.local_get(k).i32_const(1).i32_add().local_set(k).br(0).end().end();
        i.local_get(good).if_(BlockType::Empty);
        i.i32_const(ERROR).i32_const(DEBUG).local_get(fd).i32_const(2).i32_eq().select();
        i.local_get(text).local_get(length).call(LOG).end();
        i.local_get(part).i32_const(8).i32_add().local_set(part);
        i.local_get(count).i32_const(1).i32_sub().local_set(count).br(0).end().end();
        i.local_get(written).local_get(total).i32_store(at(0)).i32_const(0);
    })
}

/// (subscriptions, events, count, happened): the first one happens; if it waits for a time, it is that time now.
fn poll() -> Function {
    let (subscription, event, count, happened, timeout) = (0, 1, 2, 3, 4);
    body([(1, I64)], |i| {
        i.local_get(count).i32_eqz().if_(BlockType::Empty).i32_const(EINVAL).return_().end();
        i.local_get(subscription).i32_load8_u(at(8)).i32_eqz().if_(BlockType::Empty);
        i.local_get(subscription).i64_load(at(24)).local_set(timeout);
        i.local_get(subscription).i32_load16_u(at(40)).i32_const(1).i32_and().i32_eqz();
        i.if_(BlockType::Empty).local_get(timeout).global_get(CLOCK).i64_add().local_set(timeout).end();
        i.local_get(timeout).global_get(CLOCK).i64_gt_u().if_(BlockType::Empty).local_get(timeout).global_set(CLOCK).end().end();
        i.local_get(event).local_get(subscription).i64_load(at(0)).i64_store(at(0));
        i.local_get(event).i64_const(0).i64_store(at(8));
        i.local_get(event).local_get(subscription).i32_load8_u(at(8)).i32_store8(at(10));
        i.local_get(event).i64_const(0).i64_store(at(16)).local_get(event).i64_const(0).i64_store(at(24));
        i.local_get(happened).i32_const(1).i32_store(at(0)).i32_const(0);
    })
}

/// (code)
fn exit() -> Function {
    body([], |i| {
        i.unreachable();
    })
}

/// (bytes, length): SplitMix64, one number for each byte. Few are ever asked for.
fn random() -> Function {
    let (bytes, length, z) = (0, 1, 2);
    body([(1, I64)], |i| {
        i.block(BlockType::Empty).loop_(BlockType::Empty);
        i.local_get(length).i32_eqz().br_if(1);
        i.global_get(NUMBERS).i64_const(GAMMA).i64_add().global_set(NUMBERS);
        i.global_get(NUMBERS).local_set(z);
        for (shift, factor) in [30, 27].into_iter().zip(MIX) {
            i.local_get(z).local_get(z).i64_const(shift).i64_shr_u().i64_xor().i64_const(factor).i64_mul().local_set(z);
        }
        i.local_get(bytes).local_get(z).local_get(z).i64_const(31).i64_shr_u().i64_xor().i64_store8(at(0));
        i.local_get(bytes).i32_const(1).i32_add().local_set(bytes);
        i.local_get(length).i32_const(1).i32_sub().local_set(length).br(0).end().end().i32_const(0);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::{Caller, Engine, Instance, Linker, Memory, Store};

    type Lines = Vec<(i32, String)>;

    struct Stub {
        store: Store<Lines>,
        instance: Instance,
        memory: Memory,
    }

    impl Stub {
        fn new() -> Stub {
            let engine = Engine::default();
            let mut store = Store::new(&engine, Lines::new());
            let memory = Memory::new(&mut store, wasmtime::MemoryType::new(1, None)).unwrap();
            let mut linker = Linker::new(&engine);
            linker.define(&store, "env", "memory", memory).unwrap();
            let log = move |mut caller: Caller<'_, Lines>, level: i32, text: i32, length: i32| {
                let text = String::from_utf8(memory.data(&caller)[text as usize..][..length as usize].to_vec()).unwrap();
                caller.data_mut().push((level, text));
            };
            linker.func_wrap("restitch:transform/log@1.0.0", "log", log).unwrap();
            let module = wasmtime::Module::new(&engine, module()).unwrap();
            let instance = linker.instantiate(&mut store, &module).unwrap();
            Stub { store, instance, memory }
        }

        /// Calls a function of numbers in 32 bits.
        fn call(&mut self, name: &str, arguments: &[i32]) -> i32 {
            let function = self.instance.get_func(&mut self.store, name).unwrap();
            let arguments: Vec<_> = arguments.iter().map(|a| wasmtime::Val::I32(*a)).collect();
            let mut results = [wasmtime::Val::I32(-1)];
            function.call(&mut self.store, &arguments, &mut results).unwrap();
            results[0].unwrap_i32()
        }

        fn clock(&mut self) -> i64 {
            let function = self.instance.get_typed_func::<(i32, i64, i32), i32>(&mut self.store, "clock_time_get").unwrap();
            assert_eq!(function.call(&mut self.store, (1, 0, 8)).unwrap(), 0);
            i64::from_le_bytes(self.read(8))
        }

        fn write(&mut self, at: usize, bytes: &[u8]) {
            self.memory.write(&mut self.store, at, bytes).unwrap();
        }

        fn read<const N: usize>(&self, at: usize) -> [u8; N] {
            *self.memory.data(&self.store)[at..].first_chunk().unwrap()
        }
    }

    #[test]
    fn every_function_of_preview_1_is_there_once() {
        let mut stub = Stub::new();
        let names: std::collections::BTreeSet<String> = stub.instance.exports(&mut stub.store).map(|e| e.name().to_owned()).collect();
        assert_eq!((names.len(), REFUSED.len() + WRITTEN.len()), (46, 46));
    }

    #[test]
    fn the_clock_counts_and_waiting_is_over_at_once() {
        let mut stub = Stub::new();
        assert_eq!([stub.clock(), stub.clock()], [CLOCK_START_NS, CLOCK_START_NS + CLOCK_STEP_NS]);
        // A wait of five milliseconds, and one until an instant that has passed.
        stub.write(100, &42u64.to_le_bytes());
        stub.write(124, &5_000_000u64.to_le_bytes());
        assert_eq!(stub.call("poll_oneoff", &[100, 200, 1, 300]), 0);
        assert_eq!((u64::from_le_bytes(stub.read(200)), u32::from_le_bytes(stub.read(300))), (42, 1));
        let now = CLOCK_START_NS + 2 * CLOCK_STEP_NS + 5_000_000;
        stub.write(140, &[1]);
        stub.call("poll_oneoff", &[100, 200, 1, 300]);
        assert_eq!(stub.clock(), now);
        assert_eq!(stub.call("poll_oneoff", &[100, 200, 0, 300]), EINVAL);
    }

    #[test]
    fn what_is_written_becomes_lines_of_the_log() {
        let mut stub = Stub::new();
        stub.write(0, b"oh no\r\n");
        stub.write(16, "ü".as_bytes());
        for (at, (text, length)) in (64..).step_by(8).zip([(0u32, 7u32), (16, 2), (16, 0), (0, 2)]) {
            stub.write(at, &text.to_le_bytes());
            stub.write(at + 4, &length.to_le_bytes());
        }
        assert_eq!(stub.call("fd_write", &[2, 64, 4, 128]), 0);
        assert_eq!(u32::from_le_bytes(stub.read(128)), 11);
        assert_eq!(stub.call("fd_write", &[1, 64, 1, 128]), 0);
        assert_eq!(stub.call("fd_write", &[3, 64, 1, 128]), EBADF);
        let lines: Vec<(i32, &str)> = stub.store.data().iter().map(|(level, text)| (*level, text.as_str())).collect();
        assert_eq!(lines, [(ERROR, "oh no"), (ERROR, "oh"), (DEBUG, "oh no")]);
    }

    #[test]
    fn numbers_and_variables_are_the_same_every_time() {
        let numbers = |stub: &mut Stub| {
            assert_eq!(stub.call("random_get", &[0, 16]), 0);
            stub.read::<16>(0)
        };
        let (mut a, mut b) = (Stub::new(), Stub::new());
        let (first, second) = (numbers(&mut a), numbers(&mut a));
        assert_eq!((first, second), (numbers(&mut b), numbers(&mut b)));
        assert_ne!(first, second);
        assert_eq!((a.call("environ_sizes_get", &[0, 4]), a.read::<8>(0)), (0, [1, 0, 0, 0, 17, 0, 0, 0]));
        assert_eq!((a.call("environ_get", &[0, 8]), a.read::<4>(0), a.read::<17>(8)), (0, [8, 0, 0, 0], *b"GOTRACEBACK=none\0"));
        let exit = a.instance.get_typed_func::<i32, ()>(&mut a.store, "proc_exit").unwrap();
        assert!(exit.call(&mut a.store, 0).is_err());
    }
}
