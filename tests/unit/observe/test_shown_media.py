"""Images and audio of recorded samples: what is kept, within which bound, and what the dashboard gives out."""

import base64
import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from pydantic import SecretStr
from step_records import TIMES, recorded

from relax_engine.cli.rollouts import main as rollouts
from relax_engine.observe.rollouts.media import MediaStore, file_type
from relax_engine.observe.rollouts.query import Rollouts
from relax_engine.observe.ui.places import Places
from relax_engine.observe.ui.server import dashboard


def png(shade: int, size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(stream, format="PNG")
    return stream.getvalue()


def wav(rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((20000 * np.sin(np.arange(rate // 4) / 3)).astype("<i2").tobytes())
    return stream.getvalue()


def uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def test_the_same_picture_however_it_is_carried_is_one_file(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "media", 10**6)
    (tmp_path / "cat.png").write_bytes(png(7))
    carried = {"images": [uri("image/png", png(7)), png(7), str(tmp_path / "cat.png")]}
    described = store.describe(carried) or []
    (file,) = (tmp_path / "media").iterdir()
    assert file.read_bytes() == png(7)
    assert [medium["files"] for medium in described] == [[file.name]] * 3
    assert [medium["source"] for medium in described] == ["data:image/png;base64", "bytes", str(tmp_path / "cat.png")]
    assert {medium["kind"] for medium in described} == {"image"}


def test_pictures_and_waveforms_in_memory_become_files(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, 10**6)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    sound_wave = np.array([0.0, 0.5, -1.0, 2.0], np.float32)
    one, two, sound = store.describe({"image": [pixels, Image.fromarray(pixels)], "audio": (sound_wave, 16000)}) or []
    assert one["files"] == two["files"]
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / one["files"][0])), pixels)
    with wave.open(str(tmp_path / sound["files"][0])) as file:
        assert (file.getframerate(), file.getnchannels()) == (16000, 1)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16383, -32767, 32767]


def test_a_video_keeps_frames_from_its_whole_length(tmp_path: Path) -> None:
    frames = [np.full((4, 4, 3), shade, np.uint8) for shade in range(31)]
    (video,) = MediaStore(tmp_path, 10**6).describe({"video": [{"frames": frames, "fps": 2.0}]}) or []
    shades = [int(np.asarray(Image.open(tmp_path / file))[0, 0, 0]) for file in video["files"]]
    assert shades == list(range(0, 31, 2))


def test_the_bound_is_on_all_files_and_outlives_a_restart(tmp_path: Path) -> None:
    size = len(png(0))
    store = MediaStore(tmp_path, 2 * size + 10)
    kept = [store.describe({"image": [png(shade)]}) for shade in range(4)]
    assert [len(described[0]["files"]) for described in kept if described] == [1, 1, 0, 0]
    assert store.left_out == 2
    again = MediaStore(tmp_path, 2 * size + 10)
    assert again.describe({"image": [png(0)]}) == kept[0]  # what is there takes no room
    assert again.describe({"image": [png(9)]}) == [{"kind": "image", "files": [], "source": "bytes"}]


@pytest.mark.parametrize(
    "content",
    [b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", b"<html>", b"root:x:0:0", b""],
)
def test_only_images_and_sounds_are_kept_whatever_they_are_called(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "photo.png").write_bytes(content)
    store = MediaStore(tmp_path / "media", 10**6)
    carried = {"image": [str(tmp_path / "photo.png"), content, uri("image/png", content), "https://a.b/c.png"]}
    described = store.describe(carried) or []
    assert [medium["files"] for medium in described] == [[]] * 4
    assert not (tmp_path / "media").exists()
    assert file_type(content) is None


def test_the_dashboard_gives_a_file_to_whoever_has_the_token(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    carried = {"image": [uri("image/png", png(3))], "audio": [uri("audio/wav", wav())]}
    recorded(run, TIMES, media=carried)
    (run / "metrics.jsonl").write_text("")
    (tmp_path / "runs" / "secret.png").write_bytes(png(1))
    client = TestClient(dashboard(Places(tmp_path / "runs"), SecretStr("right"), None))
    allowed = {"Authorization": "Bearer right"}
    sample = client.get("/api/sample?run=one&step=4&index=0", headers=allowed).json()
    image, audio = sample["media"]
    found = client.get(f"/api/media?run=one&file={image['files'][0]}", headers=allowed)
    assert (found.content, found.headers["content-type"]) == (png(3), "image/png")
    assert found.headers["x-content-type-options"] == "nosniff"
    heard = client.get(f"/api/media?run=one&file={audio['files'][0]}", headers=allowed)
    assert (heard.content, heard.headers["content-type"]) == (wav(), "audio/wav")
    for file in ("../config.yaml", "../../secret.png", "%2e%2e/parts.json", "0" * 32 + ".png", "", "/etc/passwd"):
        assert client.get("/api/media", params={"run": "one", "file": file}, headers=allowed).status_code == 404
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert client.get(f"/api/media?run=one&file={image['files'][0]}", headers=headers).status_code == 401


def test_the_command_names_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, TIMES, media={"image": [uri("image/png", png(3)), "https://a.b/c.png"]})
    assert rollouts([str(tmp_path), "--show", "4", "0"]) == 0
    printed = capsys.readouterr().out
    (file,) = (tmp_path / "rollouts" / "media").iterdir()
    assert f"image: {file} (from data:image/png;base64)\n" in printed
    assert "image: not kept (from https://a.b/c.png)\n" in printed


def test_prompts_are_recorded_without_what_is_written_into_them(tmp_path: Path) -> None:
    content = [{"type": "image", "image": uri("image/png", png(3))}, {"type": "text", "text": "What is it?"}]
    recorded(tmp_path, TIMES, prompt=[{"role": "user", "content": content}])
    with Rollouts(tmp_path) as found:
        prompt = json.loads(found.sample(4, 0)["prompt"])
    assert prompt[0]["content"][0]["image"] == "data:image/png;base64,…"
    assert prompt[0]["content"][1]["text"] == "What is it?"
