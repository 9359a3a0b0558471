// SPDX-License-Identifier: GPL-2.0-only
// Checks the grammar of Markdown files with Harper, which needs no network.
// Usage: node grammar.mjs FILE...; exits with 1 if it finds anything. rules.json names the rules
// that are off, and why. A text without a finding is remembered by its hash, in the folder clean
// beside this file, and is not checked again. make lint keeps a folder for each set of rules.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { Dialect, LocalLinter } from 'harper.js';
import { binary } from 'harper.js/binary';

const clean = new URL('clean/', import.meta.url);
mkdirSync(clean, { recursive: true });

async function linterWithRules() {
  const rules = JSON.parse(readFileSync(new URL('rules.json', import.meta.url), 'utf8'));
  const linter = new LocalLinter({ binary, dialect: Dialect.American });
  const config = await linter.getDefaultLintConfig();
  for (const rule of Object.keys(rules.off)) {
    if (!(rule in config)) throw new Error(`rules.json: Harper has no rule ${rule}`);
    config[rule] = false;
  }
  await linter.setLintConfig(config);
  return linter;
}

let linter;
for (const file of process.argv.slice(2)) {
  const text = readFileSync(file, 'utf8');
  const checked = new URL(createHash('sha256').update(text).digest('hex'), clean);
  if (existsSync(checked)) continue;
  linter ??= await linterWithRules();
  const found = Object.entries(await linter.organizedLints(text, { language: 'markdown' }));
  for (const [rule, lints] of found) {
    for (const lint of lints) {
      const line = text.slice(0, lint.span().start).split('\n').length;
      console.log(`${file}:${line}: ${rule}: ${JSON.stringify(lint.get_problem_text())}: ${lint.message()}`);
      process.exitCode = 1;
    }
  }
  if (!found.some(([, lints]) => lints.length)) writeFileSync(checked, '');
}
