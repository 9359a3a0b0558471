// SPDX-License-Identifier: GPL-2.0-only
// Checks the grammar of Markdown files with Harper, which needs no network.
// Usage: node grammar.mjs FILE...; exits with 1 if it finds anything. rules.json names the rules
// that are off, and why.
import { readFileSync } from 'node:fs';
import { Dialect, LocalLinter } from 'harper.js';
import { binary } from 'harper.js/binary';

const rules = JSON.parse(readFileSync(new URL('rules.json', import.meta.url), 'utf8'));
const linter = new LocalLinter({ binary, dialect: Dialect.American });
const config = await linter.getDefaultLintConfig();
for (const rule of Object.keys(rules.off)) {
  if (!(rule in config)) throw new Error(`rules.json: Harper has no rule ${rule}`);
  config[rule] = false;
}
await linter.setLintConfig(config);

for (const file of process.argv.slice(2)) {
  const text = readFileSync(file, 'utf8');
  const found = await linter.organizedLints(text, { language: 'markdown' });
  for (const [rule, lints] of Object.entries(found)) {
    for (const lint of lints) {
      const line = text.slice(0, lint.span().start).split('\n').length;
      console.log(`${file}:${line}: ${rule}: ${JSON.stringify(lint.get_problem_text())}: ${lint.message()}`);
      process.exitCode = 1;
    }
  }
}
