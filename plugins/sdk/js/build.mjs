// Makes a component of a project: node build.mjs PROJECT WORK SDK WIT COMPONENTIZE OUT.
// Never writes into the project. `restitch transform build` writes this file beside the others and runs it.

import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [project, work, sdk, wit, componentizeJs, out] = process.argv.slice(2);

/** Writes the types out of a file: blanks stand in their place, so that lines and columns stay where they are. */
function stripTypes(path) {
  const places = [join(project, 'package.json'), componentizeJs];
  for (const place of places) {
    try {
      const { transformSync } = createRequire(place)('amaro');
      return transformSync(readFileSync(path, 'utf8'), { mode: 'strip-only' }).code;
    } catch (error) {
      if (error.code !== 'MODULE_NOT_FOUND') throw new Error(`${path}: ${error.message ?? error}`);
    }
  }
  throw new Error('types are taken out of TypeScript by amaro, which is not there. Install it:\n    npm install --save-dev --save-exact amaro@1.2.1');
}

/** Copies what can be imported. */
function copy(from, to) {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from)) {
    const [source, target] = [join(from, name), join(to, name)];
    const kind = statSync(source);
    if (kind.isDirectory() && !/^\.|^(node_modules|target|cases|tests?)$/.test(name)) copy(source, target);
    if (!kind.isFile()) continue;
    if (/\.m?js$/.test(name)) cpSync(source, target);
    if (/\.m?ts$/.test(name) && !/\.d\.m?ts$/.test(name)) writeFileSync(target, stripTypes(source));
  }
}

const sources = join(work, 'sources');
rmSync(sources, { recursive: true, force: true });
copy(project, sources);
if (!existsSync(join(sources, 'restitch'))) copy(sdk, join(sources, 'restitch'));
const author = ['transform.ts', 'transform.js'].find((name) => existsSync(join(sources, name)));
const entry = join(sources, 'restitch-entry.js');
writeFileSync(
  entry,
  `import { log } from 'restitch:transform/log@1.0.0';
import { component } from './restitch/restitch.js';
import declared from './${author}';
export const transform = component(declared, log);
`,
);

const { componentize } = await import(pathToFileURL(componentizeJs));
// All of them off: a component that imports WASI is refused.
const disableFeatures = ['random', 'stdio', 'clocks', 'http', 'fetch-event'];
// Traces then name files as the author does.
process.chdir(sources);
const { component } = await componentize({ sourcePath: entry, witPath: wit, worldName: 'transformer', disableFeatures });
writeFileSync(out, component);
