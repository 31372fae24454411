// Prints where the generated TypeScript has `any`, `unknown` or `Record<string, never>`: one place for each line.
import { readFileSync } from "node:fs";
import ts from "typescript";

const source = ts.createSourceFile("api.d.ts", readFileSync(process.argv[2], "utf8"), ts.ScriptTarget.Latest, true);
const isLoose = (node) =>
  node.kind === ts.SyntaxKind.UnknownKeyword || node.kind === ts.SyntaxKind.AnyKeyword || node.getText(source) === "Record<string, never>";
const places = new Set();

function walk(node, path) {
  // Headers may always be others than those that the document names.
  if (node.name?.text === "headers") return;
  const here = node.name?.text === undefined ? path : [...path, node.name.text];
  if (isLoose(node)) places.add(here.join("."));
  ts.forEachChild(node, (child) => walk(child, here));
}

// `webhooks` and `$defs`, which are always there, are empty.
source.statements.filter((one) => !["webhooks", "$defs"].includes(one.name?.text)).forEach((one) => walk(one, []));
for (const place of places) console.log(place.replace("components.schemas.", "").replace(/\.responses\.\d+\.content\..*/, ""));
