//! The engine: one configuration, written down, that gives the same result everywhere.
//! Never runs a component that wants more than `log`; it loads, looks and describes.
//! Above it are bytes of a component; below it `sandbox` runs one instance per partition.

use super::{
    CONTRACT, Context, Descriptor, Input, Parameter, TransformError,
    contract::{self, TransformerPre},
    sandbox::{self, Instance, State},
};
use crate::{
    config::Limits,
    id::Digest,
    schema::{DataType, Field},
    store,
};
use arrow::datatypes::{Schema, SchemaRef};
use contract::restitch::transform::types as wit;
use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};
use wasmtime::{
    Enabled, InstanceAllocationStrategy, PoolingAllocationConfig,
    component::{Component, Linker, types::ComponentItem},
};

/// Threads that may run instances at once, on a machine of few cores.
const WORKERS_MIN: usize = 32;

/// Instances that a pool has for each of them: a search for a record that a transform refuses has two at once. And memories, of which a component may
/// have more than one.
const INSTANCES_EACH: usize = 4;

/// Tables that a pool has for each instance: Python and Go guests need a handful.
const TABLES_EACH: u32 = 8;

/// Memory of an ended instance that stays with the process, cleared, for the next one; and where the system cannot tell which of it was touched, so that all
/// of it is cleared each time.
const KEPT_BYTES: usize = 4 << 20;
const KEPT_BYTES_BLIND: usize = 256 << 10;

/// How often the epoch advances: the grain of `limits.time`.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Stack of the guest. Part of the profile, because how deep a recursion may go shows in results.
const STACK_BYTES: usize = 1 << 20;

/// A component larger than this is not compiled.
const COMPONENT_BYTES_MAX: usize = 256 << 20;

/// Time that `describe` may take; it has nothing to do but to return constants.
const DESCRIBE_MS_MAX: u64 = 10_000;

/// What a transform exports, up to its version.
const EXPORT: &str = "restitch:transform/transform@";

/// What makes runs comparable. Its hash goes into every manifest.
const PROFILE: &str = "nan-canonicalisation relaxed-simd-deterministic no-threads no-concurrency no-gc stack=1048576 contract=1.0.0";

/// What the profile has besides where instructions are counted (`limits.fuel`).
const METERED: &str = " fuel";

/// wasmtime does not tell its version; `tests` compare this with Cargo.lock.
const WASMTIME: &str = "48.0.8";

/// Where compiled code is kept between processes. A stale or damaged entry is compiled again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cache {
    /// The user's cache folder; if there is none, or another user can write it, nowhere.
    User,
    /// A folder; if another user can write it, nowhere.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// Compiles and looks at transforms. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: wasmtime::Engine,
    linker: Arc<Linker<State>>,
    metered: bool,
}

impl Engine {
    /// Returns an engine, and starts the thread that ends transforms which run too long. The
    /// thread ends by itself when the engine and all that was loaded with it are gone.
    ///
    /// # Errors
    /// The cache folder cannot be made, or the machine cannot run the profile.
    pub fn new(cache: Cache) -> Result<Engine, TransformError> {
        Engine::with(cache, false)
    }

    /// Returns an engine that counts instructions, for limits with fuel: its code is another, and a tenth slower.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn metered(cache: Cache) -> Result<Engine, TransformError> {
        Engine::with(cache, true)
    }

    fn with(cache: Cache, metered: bool) -> Result<Engine, TransformError> {
        let set_up = |e: wasmtime::Error| TransformError::Engine { reason: format!("{e:#}") };
        let mut config = configuration(cache)?;
        config.consume_fuel(metered).allocation_strategy(pool());
        // Where addresses are too few for a pool, each instance's memory is made anew.
        let inner =
            wasmtime::Engine::new(&config).or_else(|_| wasmtime::Engine::new(config.allocation_strategy(InstanceAllocationStrategy::OnDemand)));
        let inner = inner.map_err(set_up)?;
        let mut linker = Linker::new(&inner);
        sandbox::add_imports(&mut linker).map_err(set_up)?;
        let weak = inner.weak();
        let tick = move || {
            while let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        };
        let spawned = std::thread::Builder::new().name("transform-epoch".into()).stack_size(128 << 10).spawn(tick);
        spawned.map_err(|e| TransformError::Engine { reason: e.to_string() })?;
        Ok(Engine { inner, linker: Arc::new(linker), metered })
    }

    /// Returns how many threads may run instances at once.
    pub fn workers_max() -> usize {
        static MAX: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(0, |n| n.get()).max(WORKERS_MIN));
        *MAX
    }

    /// Returns the engine's version and the hash of all of its configuration that can show in a result.
    pub fn describe_config(&self) -> String {
        let profile = format!("{PROFILE}{}", if self.metered { METERED } else { "" });
        format!("wasmtime {WASMTIME}; {}", Digest::of(profile.as_bytes()).short())
    }

    /// Returns the transform that `bytes` hold, compiled and described.
    ///
    /// # Errors
    /// The bytes are no component, it imports what it must not, it is no transform or one of another
    /// version of the contract, or what it says of itself makes no sense.
    pub fn load(&self, bytes: &[u8]) -> Result<Transform, TransformError> {
        check_header(bytes)?;
        let component = Component::new(&self.inner, bytes).map_err(|e| TransformError::NotComponent {
            reason: format!("{e:#}").lines().next().unwrap_or_default().to_owned(),
            hint: "the file is damaged or cut short: build it again",
        })?;
        // A newer version of the contract may import what this one does not know: first say that.
        self.check_version(&component)?;
        self.check_imports(&component)?;
        self.check_exports(&component)?;
        let pre = self.linker.instantiate_pre(&component).and_then(TransformerPre::new);
        let pre = pre.map_err(|e| TransformError::World { exports: format!("the functions of the contract, but with other types ({e:#})") })?;
        let limits = Limits { time_ms_max: DESCRIBE_MS_MAX, ..Limits::default() };
        let descriptor = sandbox::describe(&pre, &limits).map_err(undescribed)?;
        descriptor.check()?;
        let schema = Schema::new(descriptor.output.iter().map(|f| f.arrow(None)).collect::<Vec<_>>());
        let loaded = Loaded { pre, digest: Digest::of(bytes), descriptor, output: Arc::new(schema) };
        Ok(Transform(Arc::new(loaded)))
    }

    fn check_imports(&self, component: &Component) -> Result<(), TransformError> {
        for (name, import) in component.component_type().imports(&self.inner) {
            let granted = match import.ty {
                ComponentItem::ComponentInstance(instance) => instance.exports(&self.inner).all(|(item, export)| match export.ty {
                    ComponentItem::Type(_) => matches!(name, sandbox::TYPES | sandbox::LOG),
                    ComponentItem::ComponentFunc(_) => name == sandbox::LOG && item == "log",
                    _ => false,
                }),
                _ => false,
            };
            if !granted {
                return Err(TransformError::Import { import: name.to_owned(), hint: import_hint(name) });
            }
        }
        Ok(())
    }

    /// The version of the contract is that of its exported interface, or else of what it imports.
    fn check_version(&self, component: &Component) -> Result<(), TransformError> {
        let ty = component.component_type();
        let exported: Vec<&str> = ty.exports(&self.inner).filter_map(|(name, _)| name.strip_prefix(EXPORT)).collect();
        let imported = ty.imports(&self.inner).filter_map(|(name, _)| name.strip_prefix("restitch:transform/")?.split_once('@')).map(|(_, v)| v);
        let versions: Vec<&str> = if exported.is_empty() { imported.collect() } else { exported };
        match versions.first() {
            Some(found) if !versions.contains(&CONTRACT) => Err(TransformError::Version { found: (*found).to_owned() }),
            _ => Ok(()),
        }
    }

    fn check_exports(&self, component: &Component) -> Result<(), TransformError> {
        let ty = component.component_type();
        let names: Vec<&str> = ty.exports(&self.inner).map(|(name, _)| name).collect();
        // More exports are tolerated: Python and QuickJS guests carry one of their own.
        if names.iter().any(|n| n.strip_prefix(EXPORT) == Some(CONTRACT)) {
            return Ok(());
        }
        Err(TransformError::World { exports: if names.is_empty() { "nothing".into() } else { names.join(", ") } })
    }
}

/// Says of a limit that it is that of a description, which no dataset has in its hand.
fn undescribed(error: TransformError) -> TransformError {
    let reason = match error {
        TransformError::Time { limit_ms } => format!("ran longer than {limit_ms} ms"),
        TransformError::Memory { limit_bytes } => format!("needs more than {limit_bytes} bytes of memory"),
        TransformError::Output { limit_bytes } => format!("returned more than {limit_bytes} bytes"),
        other => return other,
    };
    TransformError::Undescribed { reason }
}

/// A transform that is ready to run. Cheap to clone, and shared between threads.
#[derive(Clone)]
pub struct Transform(Arc<Loaded>);

struct Loaded {
    pre: TransformerPre<State>,
    digest: Digest,
    descriptor: Descriptor,
    output: SchemaRef,
}

impl Transform {
    /// Returns what the transform says it is.
    pub fn descriptor(&self) -> &Descriptor {
        &self.0.descriptor
    }

    /// Returns the SHA-256 of the component's bytes.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// Returns the Arrow schema of the batches it returns, without Parquet field ids.
    pub fn output_schema(&self) -> SchemaRef {
        self.0.output.clone()
    }

    /// Returns a fresh instance for one partition, begun.
    ///
    /// # Errors
    /// A parameter is not known, missing or refused; a limit is hit; the transform dies.
    pub fn start(&self, context: &Context, limits: &Limits) -> Result<Instance, TransformError> {
        Instance::start(self.clone(), &self.0.pre, context, limits)
    }
}

impl std::fmt::Debug for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Transform({}@{} {})", self.0.descriptor.name, self.0.descriptor.version, self.0.digest.short())
    }
}

/// Returns the profile of DESIGN section 8. What is not named here is off because its feature is not compiled in.
fn configuration(cache: Cache) -> Result<wasmtime::Config, TransformError> {
    let mut config = wasmtime::Config::new();
    config
        .wasm_component_model(true)
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(true)
        .relaxed_simd_deterministic(true)
        .concurrency_support(false)
        .shared_memory(false)
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        // An environment variable must not change what a trap looks like.
        .wasm_backtrace_details(wasmtime::WasmBacktraceDetails::Disable)
        .cache(compiled_cache(cache)?);
    Ok(config)
}

/// Returns room for instances that is used again and again: memory that the system has to map, clear and take back for each partition costs more than a small one's rows.
/// Sizes are addresses, not memory; what an instance may use is its limits' business.
fn pool() -> PoolingAllocationConfig {
    let instances = (Engine::workers_max() * INSTANCES_EACH) as u32;
    let kept = if PoolingAllocationConfig::is_pagemap_scan_available() { KEPT_BYTES } else { KEPT_BYTES_BLIND };
    let parts = sandbox::PARTS_MAX as u32;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances * parts)
        .total_memories(instances)
        .total_tables(instances * TABLES_EACH)
        .max_memories_per_module(parts)
        .max_tables_per_module(parts)
        .max_core_instance_size(64 << 20)
        .max_component_instance_size(64 << 20)
        .table_elements(sandbox::TABLE_ELEMENTS_MAX)
        .linear_memory_keep_resident(kept)
        .table_keep_resident(kept)
        // Only what was touched is cleared, where the system can tell.
        .pagemap_scan(Enabled::Auto);
    pool
}

/// A folder that somebody else could write holds no code of ours: without a private one, every process compiles anew.
fn compiled_cache(cache: Cache) -> Result<Option<wasmtime::Cache>, TransformError> {
    let mut config = wasmtime::CacheConfig::new();
    match cache {
        Cache::Off => return Ok(None),
        // A machine without a home folder compiles every time.
        Cache::User => return Ok(wasmtime::Cache::new(config).ok().filter(|c| store::is_private(c.directory()).unwrap_or(false))),
        Cache::Folder(folder) => {
            // The cache insists on an absolute path.
            let folder = std::path::absolute(&folder).map_err(|e| TransformError::Engine { reason: e.to_string() })?;
            if !store::is_private(&folder).map_err(|e| TransformError::Engine { reason: e.to_string() })? {
                return Ok(None);
            }
            config.with_directory(folder);
        }
    }
    wasmtime::Cache::new(config).map(Some).map_err(|e| TransformError::Engine { reason: format!("{e:#}") })
}

/// Tells what is not a component before the compiler says it in its own words.
pub(super) fn check_header(bytes: &[u8]) -> Result<(), TransformError> {
    let no = |reason: String, hint| Err(TransformError::NotComponent { reason, hint });
    match bytes {
        [] => no("the file is empty".into(), "give the .wasm file that the build made"),
        _ if bytes.len() > COMPONENT_BYTES_MAX => {
            no(format!("{} bytes, more than {COMPONENT_BYTES_MAX}", bytes.len()), "build it without debug information")
        }
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => no("it is a core module".into(), "make a component of it: `restitch transform build DIR`"),
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', ..] => {
            no("its header is of a version that is not known".into(), "build it with the tools that docs/transforms.md names")
        }
        [b'(', ..] => no("it is WebAssembly text".into(), "make a binary of it: `wasm-tools parse`"),
        _ => no("it does not start with \"\\0asm\"".into(), "give the .wasm file that the build made"),
    }
}

fn import_hint(name: &str) -> &'static str {
    if name.starts_with("wasi:") {
        "build it without WASI: Rust for wasm32-unknown-unknown, Python with `componentize-py … -s`, \
         JavaScript with all features disabled (`--disable all`), C and Go as their templates do"
    } else if name.starts_with("restitch:transform/") {
        "it was built against another version of wit/: build it against wit/restitch-transform-1.0.0"
    } else {
        "remove the import: rows, parameters, the clock and the seed come with the contract's calls"
    }
}

impl From<wit::Descriptor> for Descriptor {
    fn from(d: wit::Descriptor) -> Descriptor {
        let fields = |fields: Vec<wit::Field>| fields.into_iter().map(|f| Field::new(f.name, f.data_type.into(), f.nullable)).collect();
        Descriptor {
            name: d.name,
            version: d.version,
            summary: d.summary,
            inputs: d.inputs.into_iter().map(|i| Input { name: i.name, fields: fields(i.fields) }).collect(),
            output: fields(d.output),
            key: d.key,
            parameters: d.parameters.into_iter().map(|p| Parameter { name: p.name, default: p.default, help: p.help }).collect(),
        }
    }
}

impl From<wit::DataType> for DataType {
    fn from(t: wit::DataType) -> DataType {
        match t {
            wit::DataType::Boolean => DataType::Boolean,
            wit::DataType::Int32 => DataType::Int32,
            wit::DataType::Int64 => DataType::Int64,
            wit::DataType::Float32 => DataType::Float32,
            wit::DataType::Float64 => DataType::Float64,
            wit::DataType::Decimal(d) => DataType::Decimal(d.precision, d.scale),
            wit::DataType::Utf8 => DataType::String,
            wit::DataType::Json => DataType::Json,
            wit::DataType::Binary => DataType::Binary,
            wit::DataType::Date => DataType::Date,
            wit::DataType::Time => DataType::Time,
            wit::DataType::Timestamp => DataType::Timestamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_in_manifests_is_the_one_that_is_linked() {
        let lock = include_str!("../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{WASMTIME}\"\n")), "set WASMTIME to the version in Cargo.lock");
    }

    #[test]
    fn what_is_not_a_component_is_told_in_our_words() {
        let engine = Engine::new(Cache::Off).unwrap();
        let refuse = |bytes: &[u8]| {
            let error = engine.load(bytes).unwrap_err();
            assert!(matches!(error, TransformError::NotComponent { .. }) && error.hint().is_some(), "{error}");
            error.to_string()
        };
        assert_eq!(refuse(b""), "not a WebAssembly component: the file is empty");
        assert_eq!(refuse(b"\0asm\x01\0\0\0"), "not a WebAssembly component: it is a core module");
        assert_eq!(refuse(b"(component)"), "not a WebAssembly component: it is WebAssembly text");
        assert_eq!(refuse(b"hello"), "not a WebAssembly component: it does not start with \"\\0asm\"");
        refuse(b"\0asm\x0d\0\x01\0\xff\xff");
    }

    #[test]
    fn no_dataset_is_told_to_raise_the_limits_of_a_description() {
        let table = [
            (TransformError::Time { limit_ms: 10_000 }, "ran longer than 10000 ms"),
            (TransformError::Memory { limit_bytes: 7 }, "needs more than 7 bytes of memory"),
            (TransformError::Output { limit_bytes: 7 }, "returned more than 7 bytes"),
        ];
        for (limit, reason) in table {
            let error = undescribed(limit);
            assert_eq!(error.to_string(), format!("it does not say what it is: its `describe` {reason}"));
            assert!(!error.hint().unwrap().contains("raise"));
        }
        assert!(matches!(undescribed(TransformError::Failed { message: "no".into() }), TransformError::Failed { .. }));
    }

    #[test]
    fn an_empty_component_is_no_transform() {
        let error = Engine::new(Cache::Off).unwrap().load(b"\0asm\x0d\0\x01\0").unwrap_err();
        assert_eq!(error.to_string(), "it is not a transform: it exports nothing, not restitch:transform/transform@1.0.0");
    }
}
