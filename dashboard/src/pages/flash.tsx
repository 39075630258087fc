// Flashes an image: it is sent in pieces, and only one of them is in memory at a time.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { write, writeBytes } from "../api";
import { Field, said } from "../parts";

const PIECE_BYTES = 1 << 20;
const MIB = 1 << 20;

function size(bytes: number): string {
  return bytes < MIB ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / MIB).toFixed(1)} MiB`;
}

class Cancelled extends Error {}

/** Sends the image; ``sent`` learns how much the target has taken, and may throw to stop. */
async function flash(
  path: string,
  file: File,
  partition: string,
  sent: (bytes: number) => void,
): Promise<void> {
  const wanted = { size: file.size, partition };
  const { id } = await write<{ id: string }>("POST", `${path}/flash`, wanted);
  for (let offset = 0; offset < file.size; offset += PIECE_BYTES) {
    sent(offset);
    const piece = await file.slice(offset, offset + PIECE_BYTES).arrayBuffer();
    await writeBytes(`${path}/flash/${id}/${offset}`, new Uint8Array(piece));
  }
  sent(file.size);
  await write("POST", `${path}/flash/${id}/end`);
}

type Progress = { file: File; bytes: number; state: "sending" | "done" | "failed" };

export function FlashPanel({ path, power }: { path: string; power: boolean }): JSX.Element {
  const [file, setFile] = useState<File | null>(null);
  const [partition, setPartition] = useState("");
  const [progress, setProgress] = useState<Progress | null>(null);
  const [problem, setProblem] = useState("");
  const stopped = useRef(false);
  useEffect(() => () => void (stopped.current = true), []);
  const busy = progress?.state === "sending";

  const start = async (image: File): Promise<void> => {
    stopped.current = false;
    setProblem("");
    setProgress({ file: image, bytes: 0, state: "sending" });
    let bytes = 0;
    try {
      await flash(path, image, partition, (taken) => {
        if (stopped.current) throw new Cancelled("The upload was stopped; the old image stays.");
        bytes = taken;
        setProgress({ file: image, bytes, state: "sending" });
      });
      setProgress({ file: image, bytes: image.size, state: "done" });
    } catch (error) {
      setProgress({ file: image, bytes, state: "failed" });
      setProblem(said(error));
    }
  };

  return (
    <section class="card flash" aria-label="Flash an image">
      <div class="form">
        <Field label="Image" hint={`Raw or qcow2, also compressed.${power ? " The machine must be off." : ""}`}>
          {(id) => (
            <input
              id={id}
              type="file"
              disabled={busy}
              onChange={(event) => setFile(event.currentTarget.files?.[0] ?? null)}
            />
          )}
        </Field>
        <Field label="Partition" hint="The target's usual one if empty">
          {(id) => (
            <input
              id={id}
              value={partition}
              disabled={busy}
              placeholder="root"
              onInput={(event) => setPartition(event.currentTarget.value.trim())}
            />
          )}
        </Field>
      </div>
      <div class="card-actions">
        <button
          class="primary"
          disabled={!file?.size || busy}
          aria-busy={busy}
          onClick={() => file && void start(file)}
        >
          Flash the image
        </button>
        {busy && <button onClick={() => (stopped.current = true)}>Stop</button>}
        {progress && (
          <span class="progress" role="status">
            <progress max={progress.file.size} value={progress.bytes} aria-label="Image sent" />
            {progress.state === "done"
              ? `${progress.file.name} is flashed${power ? "; switch the machine on" : ""}.`
              : `${size(progress.bytes)} of ${size(progress.file.size)}` +
                (busy && progress.bytes === progress.file.size ? ", the target checks it…" : "")}
          </span>
        )}
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
    </section>
  );
}
