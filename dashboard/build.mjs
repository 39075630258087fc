// Builds the pages into the directory given as the argument: index.html, and its script and
// styles under names that change with their content.
import { build } from "esbuild";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";

const target = process.argv[2];
if (!target) throw new Error("usage: node build.mjs DIRECTORY");

await rm(target, { recursive: true, force: true });
await mkdir(target, { recursive: true });
const { metafile } = await build({
  entryPoints: ["src/main.tsx", "src/theme.ts"],
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "linked",
  metafile: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  outdir: join(target, "assets"),
});
const built = Object.keys(metafile.outputs).map((path) => basename(path));
const named = (start, end) => {
  const found = built.find((name) => name.startsWith(`${start}-`) && name.endsWith(end));
  if (!found) throw new Error(`the build made no ${start}*${end}`);
  return found;
};
const page = (await readFile("src/index.html", "utf8"))
  .replace("%THEME%", named("theme", ".js"))
  .replace("%SCRIPT%", named("main", ".js"))
  .replace("%STYLE%", named("main", ".css"));
await writeFile(join(target, "index.html"), page);
await writeFile(join(target, "icon.svg"), await readFile("src/icon.svg"));
