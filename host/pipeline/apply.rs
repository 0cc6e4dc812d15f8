//! Plans that bind: made from a request, and carried out later from a file exactly as they are, or refused.
//! Never plans anew: what moved since is shown, and nothing is done.

use super::{
    Error, Extent, RunRequest, RunResult, Workshop, grant, modes,
    prove::without_checks,
    run::{fit, fit_parameters},
    upstream,
};
use crate::{
    catalog::{CatalogError, FILE, IDS_FILE, RunRow, TransformRow},
    config::Dataset,
    execute::Progress,
    id::RunId,
    manifest::{Kind, Mode, Recipe, Status},
    moves,
    plan::{BoundError, BoundPlan, PLAN_VERSION, Plan, plan},
    publish::{self, PublishError},
    store::{self, Store},
    time::{EventTime, format_us},
    transform::Descriptor,
};
use std::{collections::BTreeMap, path::Path};

/// A saved plan that was carried out already, or is just being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The run.
    pub run: RunId,
    /// Where it stands.
    pub status: Status,
}

impl Workshop {
    /// Plans a request, and binds the plan to all that determines its outcome: snapshot, transform, parameters, clock, seed.
    ///
    /// # Errors
    /// See [`plan::plan`]; the dataset or its transform is not known, or they do not fit.
    pub fn bind(&mut self, request: &RunRequest) -> Result<BoundPlan, Error> {
        refuse_filtered(request)?;
        let dataset = self.dataset(request)?;
        let row = self.transform_row(&dataset.transform)?;
        self.refuse_redeclared(&dataset)?;
        let asked = self.plan_request(request, &dataset)?;
        let extent = Extent::of(&asked, dataset.calendar());
        let mark = self.catalog.read(|v| v.mark())?;
        let (facts, base) = self.facts_of(&dataset, row.digest, request.snapshot, extent)?;
        let mut plan = plan(&facts, &asked)?;
        let now = self.options.clock.now();
        let (recipe, descriptor) = self.recipe(request, &dataset, &row, &plan)?;
        plan.gaps.extend(self.lookup_gaps(&recipe)?);
        let mut grants = Vec::new();
        if !plan.ranges.is_empty() {
            grants = grant::of_run(&self.project, &dataset, &descriptor, request, &self.options.operator)?;
        }
        let bound = BoundPlan {
            version: PLAN_VERSION,
            warehouse: self.catalog.read(|v| v.warehouse())?,
            planned_by: self.options.operator.clone(),
            planned_at: format_us(now.0),
            kind: request.kind,
            asked: [&request.start, &request.end].into_iter().flatten().cloned().collect(),
            window: None,
            only: request.only,
            mode: request.whole_mode(),
            validation: request.validation,
            reason: request.reason.clone(),
            partitions: 0,
            records: 0,
            files: 0,
            bytes: 0,
            ranges: Vec::new(),
            standing: Vec::new(),
            standing_rows: Default::default(),
            waiting: Vec::new(),
            up_to_date: 0,
            base_snapshot: base,
            raw_rows: facts.files.iter().map(|f| f.rows).sum(),
            stale: Vec::new(),
            upstream: Vec::new(),
            gaps: Vec::new(),
            grants,
            recipe,
        };
        let bound = bound.fill(&plan, &facts.published);
        self.keep_read(mark, &dataset, extent, facts);
        Ok(bound)
    }

    /// Returns all that determines the rows of a plan, and what the transform says of itself. What was typed is looked at also if there is
    /// nothing to do.
    pub(super) fn recipe(&mut self, request: &RunRequest, dataset: &Dataset, row: &TransformRow, plan: &Plan) -> Result<(Recipe, Descriptor), Error> {
        let now = self.options.clock.now();
        let mut recipe = Recipe::of(dataset, row.digest, plan.input_snapshot, now.0, request.seed);
        recipe.filter = request.filter.clone();
        recipe.write = modes::write(request, dataset, plan.window);
        recipe.follows = moves::follows(&self.project, dataset);
        recipe.upstream = upstream::inputs(&self.project, dataset);
        let descriptor = descriptor(&row.descriptor)?;
        if plan.ranges.is_empty() {
            fit_parameters(dataset, &descriptor, &mut recipe)?;
        } else {
            let fields = self.upstream_fields(&recipe)?;
            fit(&self.project, dataset, &descriptor, &mut recipe, &fields)?;
        }
        self.refuse_unreadable(dataset, &recipe)?;
        Ok((recipe, descriptor))
    }

    /// Writes a plan into a file outside the warehouse, over an older plan if there is one.
    ///
    /// # Errors
    /// The file lies inside the warehouse, or is there and no plan; its folder is not writable.
    pub fn save_plan(&self, bound: &BoundPlan, file: &Path) -> Result<(), Error> {
        let refuse = |why: &str| {
            let hint = Some("-o FILE names a new file outside the warehouse, or a saved plan to be replaced".to_owned());
            Err(Error::Usage { message: format!("{} {why}, and is not written", file.display()), hint })
        };
        // Files of a project may lie beside those of its warehouse.
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let database = [FILE, IDS_FILE].iter().any(|own| name.starts_with(own)) && self.store.holds(file);
        if database || ["data", "staging", "transforms"].iter().any(|own| Store::new(self.store.path(own)).holds(file)) {
            return refuse("lies inside the warehouse");
        }
        // A pipe or a terminal has nothing to lose, and an empty file neither.
        if file.is_file() {
            let text = store::read_bytes(file)?;
            let plan = BoundPlan::parse(&String::from_utf8_lossy(&text));
            if !text.is_empty() && !matches!(plan, Ok(_) | Err(BoundError::Edited)) {
                return refuse("is there already and is no saved plan");
            }
        }
        Ok(store::write(file, bound.text().as_bytes())?)
    }

    /// Carries out a saved plan: its partitions, its snapshot, its recipe, whatever time it is; or refuses.
    ///
    /// # Errors
    /// It was carried out before, or what it stands on moved ([`Error::Applied`], [`Error::Moved`]); and those of a run.
    /// # After a crash
    /// As for a run; the plan can be applied again.
    pub fn apply(&mut self, bound: &BoundPlan, progress: &dyn Progress) -> Result<RunResult, Error> {
        let warehouse = self.catalog.read(|v| v.warehouse())?;
        if warehouse != bound.warehouse {
            let message = "the plan was made for another warehouse".to_owned();
            return Err(Error::Usage { message, hint: Some("apply it where it was made, or plan here".into()) });
        }
        let digest = bound.digest();
        if let Some(RunRow { manifest, .. }) = self.catalog.read(|v| v.applied(&bound.recipe.dataset, digest))? {
            return Err(Error::Applied(Applied { run: manifest.run, status: manifest.status }));
        }
        let changes = self.ground(bound)?;
        if !changes.is_empty() {
            return Err(Error::Moved { dataset: bound.recipe.dataset.clone(), changes });
        }
        self.execute_plan(bound, Some(digest), progress)
    }

    /// What a plan stands on, compared with what is there: in words what differs.
    fn ground(&mut self, bound: &BoundPlan) -> Result<Vec<String>, Error> {
        let (recipe, plan) = (&bound.recipe, bound.plan()?);
        let mut changes = Vec::new();
        let declared = self.project.dataset(&recipe.dataset)?.clone();
        let cut = |sources: &[String], grain: &str, zone: &str| format!("by {grain} in {zone} from {}", sources.join(", "));
        let planned = cut(&recipe.input_names(), &recipe.grain.to_string(), recipe.time_zone.name());
        let now = cut(declared.input_names(), &declared.grain.to_string(), declared.time_zone.name());
        if planned != now {
            // Nothing else can be compared then.
            return Ok(vec![format!("the dataset is declared {now}, and was {planned}")]);
        }
        let dataset = without_checks(recipe)?;
        self.refuse_redeclared(&dataset)?;
        let row = self.transform_row(&dataset.transform)?;
        if row.digest != recipe.transform_digest {
            changes.push(format!("{} is {} here, and was {}", recipe.transform, row.digest.short(), recipe.transform_digest.short()));
            return Ok(changes);
        }
        let (facts, latest) = self.facts_planned(&dataset, row.digest, recipe.input_snapshot, Extent::Behind)?;
        let raw_rows: i64 = facts.files.iter().map(|f| f.rows).sum();
        // A file that another tool merged with later ones says how many rows it has now, and not then.
        let merged = facts.files.iter().any(|f| f.partial_max.is_some_and(|m| m > recipe.input_snapshot));
        if raw_rows != bound.raw_rows && !merged {
            changes.push(format!("snapshot {} had {} raw rows, and {raw_rows} of them are left", recipe.input_snapshot, bound.raw_rows));
        }
        changes.extend(bound.moved(&plan, &facts)?);
        if changes.is_empty() {
            let runs: BTreeMap<EventTime, RunId> = facts.published.iter().map(|p| (p.window.start(), p.run)).collect();
            let partitions = plan.partitions().map(|p| (p.name, p.window.start(), runs.get(&p.window.start()).copied()));
            changes = self.catalog.read(|v| match v.table(&recipe.dataset, latest)? {
                Some(table) => publish::moved(&v, &recipe.dataset, &table, (bound.base_snapshot, latest), partitions),
                None => Ok::<_, PublishError>(Vec::new()),
            })?;
        }
        if changes.is_empty() && !plan.ranges.is_empty() {
            // The source may have got a mask, or lost a column.
            let fields = self.upstream_fields(recipe)?;
            fit(&self.project, &dataset, &descriptor(&row.descriptor)?, &mut recipe.clone(), &fields)?;
        }
        Ok(changes)
    }

    /// Returns how many records have come for the partitions of a plan since it was made: they are not in it.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn come_since(&mut self, bound: &BoundPlan) -> Result<i64, Error> {
        let plan = bound.plan()?;
        let slots = self.catalog.read(|v| v.slots(&bound.recipe.sources, v.latest()?))?;
        let newer = slots.iter().filter(|s| s.snapshot > bound.recipe.input_snapshot);
        Ok(newer.filter(|s| plan.covers(s.start)).map(|s| s.records).sum())
    }
}

/// A filter leaves records out: only who names the range means to have them left out.
pub(super) fn refuse_filtered(request: &RunRequest) -> Result<(), Error> {
    if request.filter.is_none() || request.kind == Kind::Backfill || request.mode == Mode::DryRun {
        return Ok(());
    }
    let message = format!("a filter on {} would publish partitions that look whole, and use up the records that it leaves out", request.kind.name());
    Err(Error::Usage { message, hint: Some("name the range: `restitch backfill`; or look with --dry-run".into()) })
}

fn descriptor(json: &str) -> Result<Descriptor, Error> {
    serde_json::from_str(json).map_err(|e| CatalogError::Value { what: "a descriptor", value: e.to_string() }.into())
}
