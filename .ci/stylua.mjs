// Formats Lua files with StyLua's own library: `node stylua.mjs LIBRARY [--write] FILE...`
// Without --write it changes nothing, names each file that would change, and exits 1 if there is one.
import { readFileSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [library, ...rest] = process.argv.slice(2);
const write = rest[0] === '--write';
const files = write ? rest.slice(1) : rest;

const stylua = await import(pathToFileURL(library).href);
// Each call of formatCode takes its configuration away.
function configuration() {
  const config = stylua.Config.new();
  config.syntax = stylua.LuaVersion.Lua51;
  config.column_width = 110;
  config.indent_type = stylua.IndentType.Spaces;
  config.indent_width = 2;
  config.quote_style = stylua.QuoteStyle.AutoPreferSingle;
  return config;
}

let wrong = 0;
for (const file of files) {
  const before = readFileSync(file, 'utf8');
  const after = stylua.formatCode(before, configuration(), undefined, stylua.OutputVerification.Full);
  if (after === before) continue;
  wrong += 1;
  if (write) writeFileSync(file, after);
  const lines = after.split('\n');
  const at = before.split('\n').findIndex((line, index) => line !== lines[index]);
  console.log(`${file}:${at + 1}: ${write ? 'formatted' : `stylua would write: ${lines[at] ?? ''}`}`);
}
process.exit(wrong && !write ? 1 : 0);
